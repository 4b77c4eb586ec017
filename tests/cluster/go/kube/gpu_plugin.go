package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// gpuPlugin advertises devices that exist in name only: the scheduler counts them, the kubelet hands them out, and a
// container learns which it got from NVIDIA_VISIBLE_DEVICES. (A count patched into the node's status would be zeroed
// when the kubelet restarts; a plugin registers again.)
type gpuPlugin struct {
	api.UnimplementedDevicePluginServer
	devices []*api.Device
	done    <-chan struct{}
}

func (p *gpuPlugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *gpuPlugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	select {
	case <-stream.Context().Done():
	case <-p.done:
	}
	return nil
}

func (p *gpuPlugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")},
		})
	}
	return response, nil
}

func gpuPluginCommand() *cobra.Command {
	var folder, resource string
	var count int
	command := &cobra.Command{Use: "gpu-plugin", RunE: func(*cobra.Command, []string) error {
		for {
			if err := serveUntilKubeletRestarts(folder, resource, count); err != nil {
				return err
			}
		}
	}}
	command.Flags().StringVar(&folder, "folder", api.DevicePluginPath, "the kubelet's device-plugins folder")
	command.Flags().StringVar(&resource, "resource", "nvidia.com/gpu", "the resource to advertise")
	command.Flags().IntVar(&count, "count", 4, "how many devices")
	return command
}

// A kubelet that starts empties its device-plugins folder, our socket included: that is the sign to register again.
func serveUntilKubeletRestarts(folder, resource string, count int) error {
	socket := filepath.Join(folder, "octavo-gpu.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := waitFor(filepath.Join(folder, "kubelet.sock")); err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	plugin := &gpuPlugin{done: done}
	for i := range count {
		plugin.devices = append(plugin.devices, &api.Device{ID: fmt.Sprintf("fake-gpu-%d", i), Health: api.Healthy})
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, plugin)
	go func() {
		if err := server.Serve(listener); err != nil {
			log.Printf("device plugin stopped serving: %v", err)
		}
	}()
	defer server.Stop()
	defer close(done)
	if err := register(folder, resource, filepath.Base(socket)); err != nil {
		log.Printf("the kubelet did not take the registration, trying again: %v", err)
		time.Sleep(time.Second)
		return nil
	}
	log.Printf("registered %d of %s", count, resource)
	for {
		if _, err := os.Stat(socket); err != nil {
			return nil
		}
		time.Sleep(500 * time.Millisecond)
	}
}

func waitFor(path string) error {
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func register(folder, resource, endpoint string) error {
	connection, err := grpc.NewClient("unix://"+filepath.Join(folder, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: endpoint, ResourceName: resource,
	})
	return err
}
