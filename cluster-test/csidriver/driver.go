// Package csidriver is a CSI driver for tests: its volumes are directories of one machine. It
// has the services identity, controller and node, remembers its state in a file, and misbehaves
// on request.
//
// It is a judge besides: it notes requests that a container orchestrator must never make, such as
// to unstage a volume that a pod has.
//
// Several processes may share a directory: a controller, and a driver on each node. Then volumes go
// from node to node, as those of network storage do.
package csidriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/filelock"
)

// Host shows directories at other places.
type Host interface {
	Bind(source, target string, readOnly bool) error
	// Unbind does nothing when nothing is bound.
	Unbind(target string) error
}

// Config of a driver.
type Config struct {
	Name string
	Node string // the driver's ID of this node
	Root string // its volumes and its state
	Host Host
	// Socket is where the driver is served.
	Socket string
	// MaxVolumes is how many volumes the node takes: 0 for any number.
	MaxVolumes int64
	// Topology has the node's segments.
	Topology map[string]string
	// Shared is set when several processes share Root. Each volume is attached to one node then.
	Shared bool
	// Lacks are capabilities of the node service that the driver does not have.
	Lacks []csipb.NodeServiceCapability_RPC_Type
}

// Fault is how a call misbehaves.
type Fault int

// The faults.
const (
	None  Fault = iota
	Hang        // it does nothing and answers when the caller has gone away
	Abort       // another call is under way
	Lose        // it does the request, and the answer is lost
	Fail        // it does nothing, and says so
)

// Driver serves one node, and the controller.
type Driver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer
	csipb.UnimplementedNodeServer
	registerapi.UnimplementedRegistrationServer
	config Config

	mu         sync.Mutex
	state      state
	faults     func(method string) Fault
	calls      []Call
	violations []string
	told       *registerapi.RegistrationStatus
}

// Call is one that the driver has had.
type Call struct {
	Method  string
	Request any
}

// state is the part that outlives the process.
type state struct {
	Volumes map[string]*volume `json:"volumes"`
}

type volume struct {
	Name     string          `json:"name"`
	Size     int64           `json:"size"`
	Block    bool            `json:"block,omitempty"`
	Inline   bool            `json:"inline,omitempty"`
	Attached string          `json:"attached,omitempty"` // a node
	Staged   map[string]bool `json:"staged"`             // places
	Shown    map[string]bool `json:"shown"`              // places
}

// New returns a driver that goes on where one with the same root has ended.
func New(config Config) (*Driver, error) {
	d := &Driver{config: config}
	return d, d.load()
}

// load reads the state.
func (d *Driver) load() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state = state{Volumes: map[string]*volume{}}
	data, err := os.ReadFile(d.file())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, &d.state)
	}
	return err
}

func (d *Driver) file() string { return filepath.Join(d.config.Root, "state.json") }

func (d *Driver) dir(id string) string { return filepath.Join(d.config.Root, "volumes", id) }

func (d *Driver) save() error {
	data, err := json.Marshal(d.state)
	if err != nil {
		return err
	}
	return atomicfile.Write(d.file(), data, 0o600)
}

// Misbehave asks f before each call how it is to go wrong; nil ends that.
func (d *Driver) Misbehave(f func(method string) Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = f
}

// Calls returns the driver's calls, without questions for capabilities.
func (d *Driver) Calls() []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// Violations are the calls that should never have come.
func (d *Driver) Violations() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.violations)
}

// Left names the places where volumes are staged or shown.
func (d *Driver) Left() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var left []string
	for id, v := range d.state.Volumes {
		for place := range v.Staged {
			left = append(left, id+" staged at "+place)
		}
		for place := range v.Shown {
			left = append(left, id+" shown at "+place)
		}
	}
	return left
}

// Registered is the kubelet's answer to the driver's registration, or nil.
func (d *Driver) Registered() *registerapi.RegistrationStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.told
}

// Add makes a volume without the controller.
func (d *Driver) Add(id string, block bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.add(id, id, 1<<20, block)
}

func (d *Driver) add(id, name string, size int64, block bool) error {
	if err := os.MkdirAll(d.dir(id), 0o777); err != nil {
		return err
	}
	d.state.Volumes[id] = &volume{Name: name, Size: size, Block: block, Staged: map[string]bool{},
		Shown: map[string]bool{}}
	return d.save()
}

// Serve serves the driver until ctx ends.
func (d *Driver) Serve(ctx context.Context) error {
	return serve(ctx, d.config.Socket, func(s *grpc.Server) {
		csipb.RegisterIdentityServer(s, d)
		csipb.RegisterControllerServer(s, d)
		csipb.RegisterNodeServer(s, d)
	}, grpc.UnaryInterceptor(d.intercept))
}

// Register serves the socket by which a kubelet finds the driver, in the kubelet's
// plugins_registry.
func (d *Driver) Register(ctx context.Context, socket string) error {
	return serve(ctx, socket, func(s *grpc.Server) { registerapi.RegisterRegistrationServer(s, d) })
}

func serve(ctx context.Context, socket string, register func(*grpc.Server), options ...grpc.ServerOption) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(options...)
	register(server)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// GetInfo implements the kubelet's registration.
func (d *Driver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: d.config.Name, Endpoint: d.config.Socket,
		SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus implements the kubelet's registration.
func (d *Driver) NotifyRegistrationStatus(
	_ context.Context, s *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.told = s
	return &registerapi.RegistrationStatusResponse{}, nil
}

// intercept notes a call and makes it go wrong.
func (d *Driver) intercept(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	method := filepath.Base(info.FullMethod)
	fault := None
	d.mu.Lock()
	if method != "NodeGetCapabilities" {
		d.calls = append(d.calls, Call{method, request})
	}
	if d.faults != nil {
		fault = d.faults(method)
	}
	d.mu.Unlock()
	switch fault {
	case Hang:
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	case Abort:
		return nil, status.Error(codes.Aborted, "an operation is pending for the volume")
	case Fail:
		return nil, status.Error(codes.Internal, "the driver fails")
	}
	if d.config.Shared {
		lock, err := filelock.Acquire(ctx, filepath.Join(d.config.Root, "lock"))
		if err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
		defer lock.Close()
		if err := d.load(); err != nil {
			return nil, err
		}
	}
	answer, err := handle(ctx, request)
	if fault == Lose && err == nil {
		return nil, status.Error(codes.Unavailable, "the connection is lost")
	}
	return answer, err
}

func (d *Driver) violate(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	d.violations = append(d.violations, text)
	if d.config.Shared { // for the judge, which is another process
		if err := d.note(text); err != nil {
			return err
		}
	}
	return status.Error(codes.FailedPrecondition, text)
}

// Violations are in this file of a shared directory.
const Violations = "violations"

func (d *Driver) note(text string) error {
	f, err := os.OpenFile(filepath.Join(d.config.Root, Violations), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, text)
	return errors.Join(err, f.Close())
}
