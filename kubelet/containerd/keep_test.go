package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
)

// noSandboxes is a store without sandboxes.
type noSandboxes struct{ sandbox.Store }

func (noSandboxes) Get(context.Context, string) (sandbox.Sandbox, error) {
	return sandbox.Sandbox{}, errdefs.ErrNotFound
}

// shim answers for its task.
type shim struct {
	taskapi.TTRPCTaskService
	status tasktypes.Status
	err    error
}

func (s shim) State(context.Context, *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	return &taskapi.StateResponse{Status: s.status}, errgrpc.ToGRPC(s.err)
}

// TestShimsThatAreKept: the manager deletes the task of a shim for which its store returns "not
// found". So the store may return it only for a shim that reports no task.
func TestShimsThatAreKept(t *testing.T) {
	ctx := namespaces.WithNamespace(t.Context(), "k8s.io")
	for name, test := range map[string]struct {
		shim shim
		lost bool // the answer is "not found"
		kept bool // the answer is a sandbox
	}{
		"a task that has ended":     {shim: shim{status: tasktypes.Status_STOPPED}, kept: true},
		"a task that was not begun": {shim: shim{status: tasktypes.Status_CREATED}, kept: true},
		"no task":                   {shim: shim{err: errdefs.ErrNotFound}, lost: true},
		"a creation not finished":   {shim: shim{status: tasktypes.Status_UNKNOWN}, lost: true},
		"a shim that is too slow":   {shim: shim{err: context.DeadlineExceeded}},
		"a shim that is broken":     {shim: shim{err: errdefs.ErrInternal}},
	} {
		t.Run(name, func(t *testing.T) {
			store := keepingStore{noSandboxes{}, t.TempDir()}
			serveShim(t, filepath.Join(store.tasks, "k8s.io", "c1"), test.shim)
			found, err := store.Get(ctx, "c1")
			if errdefs.IsNotFound(err) != test.lost || (err == nil) != test.kept || test.kept && found.ID != "c1" {
				t.Errorf("%+v, %v", found, err)
			}
		})
	}
	t.Run("a shim that cannot be asked", func(t *testing.T) {
		if _, err := (keepingStore{noSandboxes{}, t.TempDir()}).Get(ctx, "c1"); err == nil || errdefs.IsNotFound(err) {
			t.Error(err)
		}
	})
}

// serveShim makes a bundle whose shim answers until the end of the test.
func serveShim(t *testing.T, bundle string, answers shim) {
	t.Helper()
	if err := os.MkdirAll(bundle, 0o700); err != nil {
		t.Fatal(err)
	}
	address := filepath.Join(bundle, "s")
	listener, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	bootstrap, err := json.Marshal(map[string]any{"version": 3, "address": "unix://" + address, "protocol": "ttrpc"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "bootstrap.json"), bootstrap, 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	taskapi.RegisterTTRPCTaskService(server, answers)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(t.Context(), listener) }() // ends with the server
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, ttrpc.ErrServerClosed) {
			t.Error(err)
		}
	})
}
