package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/exits"
)

// ErrExecTimeout is returned by ExecSync when the command did not end in time.
var ErrExecTimeout = errors.New("command did not end in time")

// Deadlines of calls. Creating a sandbox waits for the network, pulling for a registry.
const (
	quickCall   = 10 * time.Second
	slowCall    = 2 * time.Minute
	sandboxCall = 4 * time.Minute

	maxMessage = 16 << 20 // a runtime with many containers may answer a list with as much
)

// Client speaks CRI v1 over a Unix socket. It is safe for concurrent use.
type Client struct {
	conn    *grpc.ClientConn
	runtime runtimeapi.RuntimeServiceClient
	images  runtimeapi.ImageServiceClient
	tasks   tasks.TasksClient // for stuck ones only
	exits   exits.Dir         // records of ends that the runtime may have lost; empty for none
}

var (
	_ Runtime = (*Client)(nil)
	_ Images  = (*Client)(nil)
)

// Dial prepares a client for the socket at endpoint, a path or unix:// URL. It does not wait for
// the runtime: until it is there, calls fail with an error for which IsUnavailable holds. Calls
// pass the interceptors; the stream of events does not.
func Dial(endpoint string, interceptors ...grpc.UnaryClientInterceptor) (*Client, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("container runtime endpoint %q: want unix:///absolute/path", endpoint)
	}
	conn, err := grpc.NewClient("unix://"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(interceptors...),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("container runtime endpoint %q: %w", endpoint, err)
	}
	return &Client{
		conn:    conn,
		runtime: runtimeapi.NewRuntimeServiceClient(conn),
		images:  runtimeapi.NewImageServiceClient(conn),
		tasks:   tasks.NewTasksClient(conn),
	}, nil
}

// UseExits has statuses corrected by the records of a directory. It is called before the client is
// used.
func (c *Client) UseExits(d exits.Dir) { c.exits = d }

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// IsNotFound reports whether the runtime does not know the sandbox, container or image.
func IsNotFound(err error) bool { return status.Code(unwrapped(err)) == codes.NotFound }

// IsUnavailable reports whether the runtime could not be reached.
func IsUnavailable(err error) bool { return status.Code(unwrapped(err)) == codes.Unavailable }

// Message returns the runtime's message without gRPC's framing, for people.
func Message(err error) string {
	if s, ok := status.FromError(unwrapped(err)); ok {
		return s.Message()
	}
	return err.Error()
}

// unwrapped finds the status error under the context that callers add.
func unwrapped(err error) error {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus().Err()
	}
	return err
}

// Version returns the runtime's name and version.
func (c *Client) Version(ctx context.Context) (*runtimeapi.VersionResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	return c.runtime.Version(ctx, &runtimeapi.VersionRequest{Version: "v1"})
}

// Status asks whether the runtime and its network are ready.
func (c *Client) Status(ctx context.Context) (*runtimeapi.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	return c.runtime.Status(ctx, &runtimeapi.StatusRequest{})
}

// RunPodSandbox creates and starts a sandbox.
func (c *Client) RunPodSandbox(
	ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string,
) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, sandboxCall)
	defer cancel()
	resp, err := c.runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	if err != nil {
		return "", err
	}
	return resp.PodSandboxId, nil
}

// StopPodSandbox ends all processes in the sandbox and frees its network.
func (c *Client) StopPodSandbox(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, sandboxCall)
	defer cancel()
	_, err := c.runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return ignoreNotFound(err)
}

// RemovePodSandbox removes the sandbox with its containers.
func (c *Client) RemovePodSandbox(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, sandboxCall)
	defer cancel()
	return c.removing(ctx, &runtimeapi.ContainerFilter{PodSandboxId: id}, func() error {
		_, err := c.runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
}

// PodSandboxStatus returns the state and addresses of a sandbox.
func (c *Client) PodSandboxStatus(ctx context.Context, id string) (*runtimeapi.PodSandboxStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	resp, err := c.runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		return nil, err
	}
	return resp.Status, nil
}

// SandboxNetwork returns the path of a sandbox's network namespace; see Runtime. It is no part of
// CRI proper. containerd and CRI-O show the sandbox's specification alike, in the verbose status.
func (c *Client) SandboxNetwork(ctx context.Context, id string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	resp, err := c.runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return "", err
	}
	if resp.Status.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
		return "", fmt.Errorf("sandbox %s does not run", id)
	}
	return networkOf(resp.Info["info"])
}

// networkOf reads the path of the network namespace from a verbose status of a sandbox.
func networkOf(text string) (string, error) {
	var info struct {
		RuntimeSpec *struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		} `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		return "", fmt.Errorf("the runtime's verbose status of a sandbox: %w", err)
	}
	if info.RuntimeSpec == nil {
		return "", errors.New("the runtime's verbose status of a sandbox has no specification")
	}
	for _, n := range info.RuntimeSpec.Linux.Namespaces {
		if n.Type == "network" {
			if n.Path == "" {
				return "", errors.New("the runtime does not show the path of a sandbox's network namespace")
			}
			return n.Path, nil
		}
	}
	return "", nil
}

// ListPodSandboxes lists the sandboxes that carry all labels of selector.
func (c *Client) ListPodSandboxes(ctx context.Context, selector map[string]string) ([]*runtimeapi.PodSandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	resp, err := c.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: selector}})
	if err != nil {
		return nil, err
	}
	return resp.Items, nil
}

// CreateContainer makes a container that does not run yet.
func (c *Client) CreateContainer(
	ctx context.Context, sandboxID string, config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig,
) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, slowCall)
	defer cancel()
	resp, err := c.runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandboxID, Config: config, SandboxConfig: sandbox})
	if err != nil {
		return "", err
	}
	return resp.ContainerId, nil
}

// StartContainer starts a created container.
func (c *Client) StartContainer(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, slowCall)
	defer cancel()
	_, err := c.runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

// StopContainer ends a container; see Runtime.
func (c *Client) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	seconds := int64((grace + time.Second - 1) / time.Second)
	ctx, cancel := context.WithTimeout(ctx, grace+slowCall)
	defer cancel()
	_, err := c.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
	return ignoreNotFound(err)
}

// RemoveContainer removes a container, killing it if it runs.
func (c *Client) RemoveContainer(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, slowCall)
	defer cancel()
	return c.removing(ctx, &runtimeapi.ContainerFilter{Id: id}, func() error {
		_, err := c.runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
		return err
	})
}

// UpdateContainerResources changes the limits of a container.
func (c *Client) UpdateContainerResources(
	ctx context.Context, id string, resources *runtimeapi.LinuxContainerResources,
) error {
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	_, err := c.runtime.UpdateContainerResources(ctx,
		&runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: resources})
	return err
}

// ContainerStatus returns the state of a container.
func (c *Client) ContainerStatus(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	resp, err := c.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return nil, err
	}
	if c.exits != "" && resp.Status.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
		if record, found := c.exits.Read(id); found {
			CorrectExit(resp.Status, record)
		}
	}
	return resp.Status, nil
}

// ContainerPID returns the process ID of a container's first process. It is no part of CRI proper;
// containerd and CRI-O report it alike, in the verbose status.
func (c *Client) ContainerPID(ctx context.Context, id string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	resp, err := c.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return 0, err
	}
	var info struct {
		PID int `json:"pid"`
	}
	text := resp.Info["info"]
	if text == "" {
		return 0, nil
	}
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		return 0, fmt.Errorf("what the runtime tells about container %s: %w", id, err)
	}
	return info.PID, nil
}

// ListContainers lists the containers that carry all labels of selector.
func (c *Client) ListContainers(ctx context.Context, selector map[string]string) ([]*runtimeapi.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	resp, err := c.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: selector}})
	if err != nil {
		return nil, err
	}
	return resp.Containers, nil
}

// ReopenContainerLog makes the runtime open the log file anew after it was renamed.
func (c *Client) ReopenContainerLog(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	_, err := c.runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	return err
}

// ExecSync runs a command in a container; see Runtime.
func (c *Client) ExecSync(ctx context.Context, id string, command []string, timeout time.Duration) (ExecResult, error) {
	deadline := slowCall
	if timeout > 0 {
		deadline = timeout + quickCall // the runtime enforces the timeout; this one is for a runtime that hangs
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	seconds := int64((timeout + time.Second - 1) / time.Second)
	resp, err := c.runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: seconds})
	if err != nil {
		if status.Code(err) == codes.DeadlineExceeded {
			return ExecResult{}, fmt.Errorf("%w: %s", ErrExecTimeout, Message(err))
		}
		return ExecResult{}, err
	}
	return ExecResult{Stdout: resp.Stdout, Stderr: resp.Stderr, ExitCode: resp.ExitCode}, nil
}

// Exec prepares a streamed command.
func (c *Client) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	resp, err := c.runtime.Exec(ctx, req)
	if err != nil {
		return "", err
	}
	return resp.Url, nil
}

// Attach prepares a stream to a container's main process.
func (c *Client) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	resp, err := c.runtime.Attach(ctx, req)
	if err != nil {
		return "", err
	}
	return resp.Url, nil
}

// ListContainerStats reads the usage of the containers that carry all labels of selector.
func (c *Client) ListContainerStats(
	ctx context.Context, selector map[string]string,
) ([]*runtimeapi.ContainerStats, error) {
	ctx, cancel := context.WithTimeout(ctx, slowCall)
	defer cancel()
	resp, err := c.runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{
		Filter: &runtimeapi.ContainerStatsFilter{LabelSelector: selector}})
	if err != nil {
		return nil, err
	}
	return resp.Stats, nil
}

// Events streams lifecycle events; see Runtime.
func (c *Client) Events(ctx context.Context, ready func(), fn func(*runtimeapi.ContainerEventResponse)) error {
	stream, err := c.runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	ready()
	for {
		event, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return status.Error(codes.Unavailable, "the runtime ended its event stream")
		case err != nil:
			return err
		}
		fn(event)
	}
}

// ListImages lists every image of the runtime.
func (c *Client) ListImages(ctx context.Context) ([]*runtimeapi.Image, error) {
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	resp, err := c.images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	return resp.Images, nil
}

// ImageStatus looks an image up; nil when it is not there.
func (c *Client) ImageStatus(ctx context.Context, image string) (*runtimeapi.Image, error) {
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	resp, err := c.images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	if err != nil {
		return nil, err
	}
	return resp.Image, nil
}

// PullImage fetches an image and returns its reference. It takes as long as ctx allows: the runtime
// itself gives up on a pull that makes no progress.
func (c *Client) PullImage(
	ctx context.Context, image string, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig,
) (string, error) {
	resp, err := c.images.PullImage(ctx, &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: image}, Auth: auth, SandboxConfig: sandbox})
	if err != nil {
		return "", err
	}
	return resp.ImageRef, nil
}

// RemoveImage deletes an image.
func (c *Client) RemoveImage(ctx context.Context, image string) error {
	ctx, cancel := context.WithTimeout(ctx, slowCall)
	defer cancel()
	_, err := c.images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	return ignoreNotFound(err)
}

// ImageFsInfo returns the file systems of images and their use.
func (c *Client) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	return c.images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
}

func ignoreNotFound(err error) error {
	if IsNotFound(err) {
		return nil
	}
	return err
}
