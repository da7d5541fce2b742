package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/events/exchange"
	"github.com/containerd/containerd/v2/core/metadata"
	runtimev2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/containerd/ttrpc"
)

// A containerd that starts loads the shims of an earlier one. It deletes each task in which nothing
// runs, as one whose creation an earlier containerd did not finish. A container that has ended in
// the meantime looks the same: its exit code, and the end of its log, are lost.
//
// So the shim manager is made here, and the configuration disables containerd's own
// (stockShimManager). It differs in the store of sandboxes: containerd keeps the shims of
// sandboxes, and this store knows the tasks that have ended, too. CRI then finds the task stopped,
// takes its exit code, reads the rest of its log, and deletes it.
const (
	stockShimManager = "io.containerd.shim.v1.manager"
	shimManagerID    = "barque"
	tasksPlugin      = "io.containerd.runtime.v2.task"
)

// shimConfig is the part of the configuration that containerd's own manager has, too.
type shimConfig struct {
	SocketDir string   `toml:"socket_dir"`
	Env       []string `toml:"env"`
}

func init() {
	registry.Register(&plugin.Registration{
		Type:     plugins.ShimPlugin,
		ID:       shimManagerID,
		Requires: []plugin.Type{plugins.EventPlugin, plugins.MetadataPlugin},
		Config:   &shimConfig{},
		InitFn:   newShimManager,
	})
}

func newShimManager(ic *plugin.InitContext) (any, error) {
	config := ic.Config.(*shimConfig)
	if config.SocketDir == "" {
		return nil, fmt.Errorf("the shim manager %s needs a socket_dir: %w", shimManagerID, plugin.ErrSkipPlugin)
	}
	db, err := ic.GetSingle(plugins.MetadataPlugin)
	if err != nil {
		return nil, err
	}
	events, err := ic.GetByID(plugins.EventPlugin, "exchange")
	if err != nil {
		return nil, err
	}
	return runtimev2.NewShimManager(&runtimev2.ManagerConfig{
		Address:      ic.Properties[plugins.PropertyGRPCAddress],
		TTRPCAddress: ic.Properties[plugins.PropertyTTRPCAddress],
		SocketDir:    config.SocketDir,
		ShimEnv:      config.Env,
		Events:       events.(*exchange.Exchange),
		Store:        metadata.NewContainerStore(db.(*metadata.DB)),
		SandboxStore: keepingStore{
			Store: metadata.NewSandboxStore(db.(*metadata.DB)),
			tasks: filepath.Join(filepath.Dir(ic.Properties[plugins.PropertyStateDir]), tasksPlugin),
		},
	})
}

// keepingStore is the shim manager's store of sandboxes. The manager asks it which shims to keep.
type keepingStore struct {
	sandbox.Store
	tasks string // the directory of the tasks' bundles
}

// Get returns a sandbox, or a stand-in for a task that its shim knows.
func (s keepingStore) Get(ctx context.Context, id string) (sandbox.Sandbox, error) {
	found, err := s.Store.Get(ctx, id)
	if !errdefs.IsNotFound(err) {
		return found, err
	}
	namespace, ok := namespaces.Namespace(ctx)
	if !ok {
		return found, err
	}
	state, asked := askShim(ctx, filepath.Join(s.tasks, namespace, id), id)
	switch {
	case errdefs.IsNotFound(asked), asked == nil && state.Status == tasktypes.Status_UNKNOWN:
		return found, err
	case asked != nil: // the manager keeps a shim of which it does not know whether a task is there
		return found, fmt.Errorf("asking the shim of %s whether it has a task: %w", id, asked)
	}
	return sandbox.Sandbox{ID: id}, nil
}

// askShim asks the shim of a bundle for the state of its task. A shim without a task is
// errdefs.ErrNotFound.
func askShim(ctx context.Context, bundle, id string) (*taskapi.StateResponse, error) {
	raw, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json"))
	if err != nil {
		return nil, err
	}
	var shim struct {
		Version  int    `json:"version"`
		Address  string `json:"address"`
		Protocol string `json:"protocol"`
	}
	if err := json.Unmarshal(raw, &shim); err != nil {
		return nil, fmt.Errorf("bundle %s: %w", bundle, err)
	}
	if shim.Protocol != "ttrpc" {
		return nil, fmt.Errorf("bundle %s: its shim speaks %q, not ttrpc", bundle, shim.Protocol)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", strings.TrimPrefix(shim.Address, "unix://"))
	if err != nil {
		return nil, err
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	tasks, err := runtimev2.NewTaskClient(client, shim.Version)
	if err != nil {
		return nil, err
	}
	state, err := tasks.State(ctx, &taskapi.StateRequest{ID: id})
	return state, errgrpc.ToNative(err)
}
