package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"runtime"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// The relay runs inside the cluster's network and listens on the host's loopback: a socket belongs to the network
// namespace it was made in, whoever accepts on it. It dials cluster names by the resolv.conf of its mount namespace.
//
//	caller's shell -> 127.0.0.1:PORT (host namespace) -> relay -> service.namespace:port (cluster namespace)
type relay struct {
	host   int // file descriptor of the host's network namespace
	mutex  sync.Mutex
	routes map[string]int // target -> port
}

type route struct {
	Target string `json:"target"`
	Port   int    `json:"port"`
}

func relayCommand() *cobra.Command {
	var socket, api string
	var host, apiPort, proxyPort int
	command := &cobra.Command{Use: "relay", RunE: func(*cobra.Command, []string) error {
		r := &relay{host: host, routes: map[string]int{}}
		if err := r.open(api, apiPort); err != nil {
			return err
		}
		listener, err := r.listen(proxyPort)
		if err != nil {
			return err
		}
		go func() { log.Fatal(http.Serve(listener, newProxy())) }()
		return r.serveControl(socket)
	}}
	command.Flags().StringVar(&socket, "control", "", "unix socket that takes new routes")
	command.Flags().StringVar(&api, "api", "", "address of the API server inside the cluster's network")
	command.Flags().IntVar(&apiPort, "api-port", 0, "its port on the host's loopback")
	command.Flags().IntVar(&proxyPort, "proxy-port", 0, "port of the HTTP proxy on the host's loopback")
	command.Flags().IntVar(&host, "host-netns", 0, "inherited descriptor of the host's network namespace")
	return command
}

func (r *relay) listen(port int) (listener net.Listener, err error) {
	done := make(chan struct{})
	go func() { // never unlocked: the thread ends with the goroutine, so no other work runs in the host's namespace
		defer close(done)
		runtime.LockOSThread()
		if err = unix.Setns(r.host, unix.CLONE_NEWNET); err == nil {
			listener, err = net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		}
	}()
	<-done
	return listener, err
}

func (r *relay) open(target string, port int) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if existing, known := r.routes[target]; known && (port == 0 || port == existing) {
		return nil
	}
	listener, err := r.listen(port)
	if err != nil {
		return err
	}
	r.routes[target] = listener.Addr().(*net.TCPAddr).Port
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				log.Printf("no more connections for %s: %v", target, err)
				return
			}
			go func() {
				server, err := net.Dial("tcp4", target)
				if err != nil {
					log.Printf("cannot reach %s: %v", target, err)
					reset(client)
					return
				}
				splice(client.(*net.TCPConn), server.(*net.TCPConn))
			}()
		}
	}()
	return nil
}

// A caller whose target cannot be reached sees a reset, never a clean end of stream.
func reset(client net.Conn) {
	client.(*net.TCPConn).SetLinger(0)
	client.Close()
}

// Both directions until both have ended. One side's FIN is passed on alone; a broken side breaks the other.
func splice(a, b *net.TCPConn) {
	var both sync.WaitGroup
	both.Add(2)
	for _, pair := range [][2]*net.TCPConn{{a, b}, {b, a}} {
		go func() {
			defer both.Done()
			if _, err := io.Copy(pair[1], pair[0]); err != nil {
				reset(a)
				reset(b)
				return
			}
			pair[1].CloseWrite()
		}()
	}
	both.Wait()
	a.Close()
	b.Close()
}

func (r *relay) serveControl(socket string) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.Method == http.MethodPost {
			var wanted route
			err := json.NewDecoder(request.Body).Decode(&wanted)
			if err == nil {
				err = r.open(wanted.Target, wanted.Port)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusConflict)
				return
			}
		}
		r.mutex.Lock()
		defer r.mutex.Unlock()
		json.NewEncoder(w).Encode(r.routes)
	}))
}

// newProxy answers CONNECT (a tunnel) and absolute-form requests (what HTTP clients send for http:// URLs). Upstream
// connections are not pooled: a pod's address may be another pod's a moment later.
func newProxy() http.Handler {
	forward := &httputil.ReverseProxy{
		Rewrite:       func(*httputil.ProxyRequest) {},
		FlushInterval: -1,
		Transport:     &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: -1},
		ErrorHandler: func(w http.ResponseWriter, request *http.Request, err error) {
			http.Error(w, fmt.Sprintf("relay: cannot reach %s: %v", request.URL.Host, err), http.StatusBadGateway)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		switch {
		case request.Method == http.MethodConnect:
			tunnel(w, request.Host)
		case request.URL.IsAbs():
			forward.ServeHTTP(w, request)
		default:
			http.Error(w, "relay: this is a proxy; set it as your client's HTTP proxy", http.StatusBadRequest)
		}
	})
}

func tunnel(w http.ResponseWriter, target string) {
	server, err := net.Dial("tcp4", target)
	if err != nil {
		http.Error(w, fmt.Sprintf("relay: cannot reach %s: %v", target, err), http.StatusBadGateway)
		return
	}
	client, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		server.Close()
		log.Printf("cannot take over the connection for %s: %v", target, err)
		return
	}
	io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n")
	if early := buffered.Reader.Buffered(); early > 0 { // bytes the client sent without waiting for the 200
		if _, err := io.CopyN(server, buffered.Reader, int64(early)); err != nil {
			reset(client)
			server.Close()
			return
		}
	}
	splice(client.(*net.TCPConn), server.(*net.TCPConn))
}
