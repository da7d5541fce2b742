package pods

import (
	"context"
	"time"

	"github.com/barque/barque/kubelet/pods/lifecycle"
)

// named is a worker's record of the containers of one name.
type named struct {
	lifecycle.Named
	failures lifecycle.Backoff // of pulls and starts
	image    string            // of the spec, as last seen
	recorded string            // the event of a back-off, as last recorded
}

// named returns the record of a name.
func (w *worker) named(name string) *named {
	if w.names[name] == nil {
		w.names[name] = &named{}
	}
	return w.names[name]
}

// instance is a worker's record of one container.
type instance struct {
	hook       bool              // its postStart hook has not ended yet
	hookFailed bool              // its postStart hook has failed
	stopHook   bool              // its preStop hook has run
	killing    *killing          // while it is being stopped
	updated    *lifecycle.Limits // see lifecycle.Instance
}

// killing is a container that is being stopped.
type killing struct {
	until  time.Time // when the runtime kills it
	cancel context.CancelCauseFunc
}

// instance returns the record of a container.
func (w *worker) instance(id string) *instance {
	if w.instances[id] == nil {
		w.instances[id] = &instance{}
	}
	return w.instances[id]
}

// known returns the worker's knowledge of the containers for a decision.
func (w *worker) known(observed *lifecycle.Observed) (map[string]lifecycle.Named, map[string]lifecycle.Instance) {
	names := make(map[string]lifecycle.Named, len(w.names))
	for name, is := range w.names {
		names[name] = is.Named
	}
	instances := make(map[string]lifecycle.Instance, len(observed.Containers))
	for i := range observed.Containers {
		c := &observed.Containers[i]
		is := w.instance(c.ID)
		f := lifecycle.Instance{Hook: is.hook, Killing: is.killing != nil, Updated: is.updated}
		if c.State == lifecycle.Running {
			if h, ok := w.m.Probes.Health(c.ID); ok {
				f.Health = lifecycle.Health{Started: h.Started, Ready: h.Ready, Failed: h.Failed}
				if is.hookFailed {
					f.Health.Failed = lifecycle.PostStartHook
				}
			}
		}
		instances[c.ID] = f
	}
	return names, instances
}

// replacing reports whether a container was stopped for a new definition and does not run again.
func (w *worker) replacing() bool {
	for _, is := range w.names {
		if is.Replacing {
			return true
		}
	}
	return false
}
