package cri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime runs sandboxes and containers. Implementations: Client over a real runtime's socket, and
// fake.Runtime in memory. Errors are gRPC status errors; IsNotFound and IsUnavailable classify
// them. Removing or stopping a missing one is not an error.
type Runtime interface {
	Version(ctx context.Context) (*runtimeapi.VersionResponse, error)
	Status(ctx context.Context) (*runtimeapi.StatusResponse, error)

	RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error)
	StopPodSandbox(ctx context.Context, id string) error
	RemovePodSandbox(ctx context.Context, id string) error
	PodSandboxStatus(ctx context.Context, id string) (*runtimeapi.PodSandboxStatus, error)
	// SandboxNetwork returns the path of a sandbox's network namespace. It is empty for a sandbox
	// on the node's network. It is an error that the sandbox does not run.
	SandboxNetwork(ctx context.Context, id string) (path string, err error)
	ListPodSandboxes(ctx context.Context, selector map[string]string) ([]*runtimeapi.PodSandbox, error)

	CreateContainer(
		ctx context.Context, sandboxID string, config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig,
	) (string, error)
	StartContainer(ctx context.Context, id string) error
	// StopContainer sends the stop signal and, once grace has passed, SIGKILL. It returns when the
	// container has ended.
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	RemoveContainer(ctx context.Context, id string) error
	// UpdateContainerResources changes the limits of a container, also while it runs.
	UpdateContainerResources(ctx context.Context, id string, resources *runtimeapi.LinuxContainerResources) error
	ContainerStatus(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error)
	// ContainerPID returns the process ID on this host of a container's first process, 0 when the
	// runtime does not report it.
	ContainerPID(ctx context.Context, id string) (int, error)
	ListContainers(ctx context.Context, selector map[string]string) ([]*runtimeapi.Container, error)
	ReopenContainerLog(ctx context.Context, id string) error

	// ExecSync runs a command inside a container and waits for it. A command that ran and failed
	// has an exit code and no error; ErrExecTimeout means that it did not end in time.
	ExecSync(ctx context.Context, id string, command []string, timeout time.Duration) (ExecResult, error)
	Streams

	// ListContainerStats reads the usage of the containers that carry all labels of selector. The
	// runtime asks a process of its own for each, so the price is high: package usage reads the
	// control groups itself. containerd 2.4.2 measures all tasks for a selector of none.
	ListContainerStats(ctx context.Context, selector map[string]string) ([]*runtimeapi.ContainerStats, error)

	// Events calls fn for each lifecycle event until ctx ends or the stream breaks, and calls ready
	// once the stream stands. Events are hints: a consumer reads the state itself, and must read
	// all of it after ready, for earlier events are lost.
	Events(ctx context.Context, ready func(), fn func(*runtimeapi.ContainerEventResponse)) error
}

// Streams hands out the addresses at which the runtime's own streaming server serves one session.
type Streams interface {
	Exec(ctx context.Context, req *runtimeapi.ExecRequest) (url string, err error)
	Attach(ctx context.Context, req *runtimeapi.AttachRequest) (url string, err error)
}

// ExecResult is the outcome of a command that ran to its end.
type ExecResult struct {
	Stdout, Stderr []byte
	ExitCode       int32
}

// Images is the runtime's image store.
type Images interface {
	ListImages(ctx context.Context) ([]*runtimeapi.Image, error)
	// ImageStatus returns nil without an error when the image is not there.
	ImageStatus(ctx context.Context, image string) (*runtimeapi.Image, error)
	PullImage(
		ctx context.Context, image string, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig,
	) (ref string, err error)
	RemoveImage(ctx context.Context, image string) error
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
}
