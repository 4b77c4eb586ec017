// probe is what test pods run: an HTTP server, an HTTP client, a resolver, and the pause container, in one static file.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const usage = "usage: probe pause | serve ADDRESS | get URL | resolve NAME | id"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "pause":
		<-ctx.Done()
		return nil
	case len(args) == 1 && args[0] == "id":
		fmt.Printf("uid=%d gid=%d\n", os.Getuid(), os.Getgid())
		return nil
	case len(args) == 2 && args[0] == "serve":
		return serve(ctx, args[1])
	case len(args) == 2 && args[0] == "get":
		return get(ctx, args[1])
	case len(args) == 2 && args[0] == "resolve":
		addresses, err := net.DefaultResolver.LookupHost(ctx, args[1])
		fmt.Println(addresses)
		return err
	}
	return fmt.Errorf(usage)
}

// serve answers / with the pod's own name, /echo with what was sent, and /ticks with a line every 100 ms for ten seconds.
func serve(ctx context.Context, address string) error {
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, hostname) })
	http.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	http.HandleFunc("/ticks", func(w http.ResponseWriter, r *http.Request) {
		for i := range 100 {
			fmt.Fprintln(w, "tick", i)
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	server := &http.Server{Addr: address}
	go func() {
		<-ctx.Done()
		server.Close()
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}
