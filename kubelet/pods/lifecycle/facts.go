package lifecycle

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// ContainerState is the runtime's state of a container.
type ContainerState int

// The states of a container, in the order in which it passes them.
const (
	Created ContainerState = iota
	Running
	Exited
	Unknown // the runtime lost track of it; it counts as alive until it is removed
)

// Container is one container that the runtime knows.
type Container struct {
	ID        string
	Name      string
	SandboxID string
	Attempt   uint32 // the restart count
	Round     uint32 // see Facts.round
	State     ContainerState

	CreatedAt, StartedAt, FinishedAt time.Time

	ExitCode int32
	Reason   string
	Message  string

	SpecImage string // as the pod named it when the container was made
	Image     string // as the runtime names it
	ImageID   string
	User      *v1.ContainerUser
	Limits    *Limits // as the runtime enforces them; nil when it does not report them
	// MemoryRequest is the request at the container's creation, in bytes; nil when it is not known.
	MemoryRequest *int64
}

func (c *Container) alive() bool { return c.State == Running || c.State == Unknown }

// Sandbox is a sandbox of the runtime.
type Sandbox struct {
	ID        string
	Attempt   uint32
	Ready     bool
	CreatedAt time.Time
	IPs       []string
}

// Observed is a view of one pod as the runtime has it: newest first everywhere.
type Observed struct {
	Sandboxes  []Sandbox
	Containers []Container
}

// Sandbox returns the newest sandbox, or nil.
func (o *Observed) Sandbox() *Sandbox {
	if len(o.Sandboxes) == 0 {
		return nil
	}
	return &o.Sandboxes[0]
}

// Newest returns the newest container of that name, or nil.
func (o *Observed) Newest(name string) *Container {
	for i := range o.Containers {
		if o.Containers[i].Name == name {
			return &o.Containers[i]
		}
	}
	return nil
}

// newestIn is Newest within one sandbox.
func (o *Observed) newestIn(sandboxID, name string) *Container {
	for i := range o.Containers {
		if c := &o.Containers[i]; c.Name == name && c.SandboxID == sandboxID {
			return c
		}
	}
	return nil
}

// previous returns the newest ended container of that name older than c, or nil.
func (o *Observed) previous(c *Container) *Container {
	for i := range o.Containers {
		if p := &o.Containers[i]; p.Name == c.Name && p.ID != c.ID && p.Attempt < c.Attempt && p.State == Exited {
			return p
		}
	}
	return nil
}

// Health is the result of the probes of a running container.
type Health struct {
	Started bool // the startup probe succeeded, or there is none
	Ready   bool // the readiness probe succeeds, or there is none
	// Failed is set when a liveness or startup probe wants the container restarted, and
	// names the probe.
	Failed string
}

// Trouble is the reason why a container cannot be started now.
type Trouble struct {
	Reason  string
	Message string
	Since   time.Time
	RetryAt time.Time
}

// Facts are the input of a decision.
type Facts struct {
	Pod      *v1.Pod // with its allocated resources, which may differ from those of its spec
	Observed Observed
	Now      time.Time

	// Named and Instances have the kubelet's own knowledge of containers, by name and by ID. One
	// that is missing has the zero value.
	Named     map[string]Named
	Instances map[string]Instance
	// SandboxTrouble is the failure of the last try to make a sandbox; nil after a success.
	SandboxTrouble *Trouble
	// Resized is set once a resize was allocated, also by an earlier process.
	Resized bool
}

// Named is the kubelet's knowledge of the containers of one name. It outlives each of them.
type Named struct {
	// Image is the outcome of a pull: a reference to start the next container with. It is empty
	// before.
	Image string
	// Pulling is set while the image is being fetched.
	Pulling bool
	// Trouble is the failure of the last try to start a container; nil after a success.
	Trouble *Trouble
	// Restarts spaces out the restarts.
	Restarts Restarts
	// Replacing is set when a container was stopped because its definition changed, until the next
	// one runs or is in trouble.
	Replacing bool
}

// Instance is the kubelet's knowledge of one container.
type Instance struct {
	// Health is known once the container has been running long enough.
	Health Health
	// Hook is set until the postStart hook has ended.
	Hook bool
	// Killing is set while the container is being stopped.
	Killing bool
	// Updated are the limits of the last update since the start; nil when there was none, or when
	// it failed.
	Updated *Limits
}

// Kill is a container to be stopped.
type Kill struct {
	ID      string
	Name    string
	Reason  string // why, for people
	Trouble string // set when a probe has failed: the preStop hook runs all the same, and the event names the probe
	Replace bool   // set when it is to be replaced, its definition having changed
	Resize  bool   // set when new resources are the reason to replace it
	Now     bool   // set when it gets neither a preStop hook nor time to end
}

// Update is a running container whose limits are to change.
type Update struct {
	ID, Name string
	Limits   Limits
	Lower    bool // its limit of memory is to become less
}

// Start is a container to be made and started.
type Start struct {
	Container *v1.Container
	Attempt   uint32
	Round     uint32 // see Facts.round
	ImageRef  string
	// Restart is set when an earlier container of that name has ended.
	Restart bool
}

// Waiting is the reason shown for a container that does not run.
type Waiting struct {
	Reason  string
	Message string
}

// Plan has the next steps for a pod. They do not depend on each other's outcome: when one changes
// the observed state, the next decision sees it.
type Plan struct {
	Kill              []Kill
	Update            []Update
	StopSandboxes     []string
	RemoveContainers  []string
	RemoveSandboxes   []string
	CreateSandbox     bool
	SandboxAttempt    uint32
	Pull              []*v1.Container
	Start             []Start
	Waiting           map[string]Waiting // by container name
	RestartingMessage map[string]string  // containers that wait for their back-off to pass, with the event's text
	// WakeAt is when to decide again though nothing has happened; zero for never.
	WakeAt time.Time
	// Ended is set, when terminating, once nothing of the pod is alive any more.
	Ended bool
}

// WakeBy has the next decision no later than t.
func (p *Plan) WakeBy(t time.Time) {
	if p.WakeAt.IsZero() || t.Before(p.WakeAt) {
		p.WakeAt = t
	}
}

func (p *Plan) wait(name, reason, message string) {
	if p.Waiting == nil {
		p.Waiting = map[string]Waiting{}
	}
	p.Waiting[name] = Waiting{Reason: reason, Message: message}
}
