package upgrade

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/barque/barque/membership/skew"
)

// Resource is that of Upgrades.
var Resource = schema.GroupVersionResource{Group: "operations.barque.io", Version: "v1", Resource: "upgrades"}

// Kind of an Upgrade.
const Kind = "Upgrade"

// Definition is the CustomResourceDefinition of Upgrades.
//
//go:embed upgrade.yaml
var Definition []byte

// Object is an Upgrade.
type Object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              Spec   `json:"spec"`
	Status            Status `json:"status,omitzero"`
}

// Spec is described in the definition.
type Spec struct {
	Version        string `json:"version"`
	Checksum       string `json:"checksum,omitempty"`
	URL            string `json:"url,omitempty"`
	Unsigned       bool   `json:"unsigned,omitempty"`
	Paused         bool   `json:"paused,omitempty"`
	PauseAfter     *int   `json:"pauseAfter,omitempty"`
	AgentsAtOnce   int    `json:"agentsAtOnce,omitempty"`
	ReadySeconds   int    `json:"readySeconds,omitempty"`
	GateSeconds    int    `json:"gateSeconds,omitempty"`
	PrepareSeconds int    `json:"prepareSeconds,omitempty"`
	VerifySeconds  *int   `json:"verifySeconds,omitempty"`
	Attempt        int    `json:"attempt,omitempty"`
}

// Phase of an Upgrade.
type Phase string

// Phases. An Upgrade without one has not begun.
const (
	Preparing  Phase = "Preparing"
	Running    Phase = "Running"
	Paused     Phase = "Paused"
	Complete   Phase = "Complete"
	Incomplete Phase = "Incomplete" // nodes were skipped
	Failed     Phase = "Failed"
)

// Ended reports whether nothing is done any more, until another attempt.
func (p Phase) Ended() bool { return p == Complete || p == Incomplete || p == Failed }

// Direction of an upgrade.
type Direction string

// Directions.
const (
	Up   Direction = "up"
	Down Direction = "down"
)

// NodePhase is the phase of a node.
type NodePhase string

// Phases of a node.
const (
	Waiting    NodePhase = "Waiting"
	Prepared   NodePhase = "Prepared"
	Restarting NodePhase = "Restarting"
	Checking   NodePhase = "Checking"
	Confirming NodePhase = "Confirming"
	Done       NodePhase = "Done"
	TakingBack NodePhase = "TakingBack"
	TakenBack  NodePhase = "TakenBack"
	Lost       NodePhase = "Lost"
	Skipped    NodePhase = "Skipped"
)

// active reports whether the node is between two programs.
func (p NodePhase) active() bool {
	return p == Restarting || p == Checking || p == Confirming || p == TakingBack
}

// broken reports whether the node has stopped the upgrade.
func (p NodePhase) broken() bool { return p == TakenBack || p == Lost }

// Status is the progress.
type Status struct {
	Phase      Phase              `json:"phase,omitempty"`
	Message    string             `json:"message,omitempty"`
	Direction  Direction          `json:"direction,omitempty"`
	Attempt    int                `json:"attempt,omitempty"`
	Checksum   string             `json:"checksum,omitempty"` // of the release that the nodes get
	Began      *metav1.Time       `json:"began,omitempty"`
	Ended      *metav1.Time       `json:"ended,omitempty"`
	Done       int                `json:"done"`  // nodes in the version
	Total      int                `json:"total"` // nodes
	Nodes      []NodeStatus       `json:"nodes,omitempty"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NodeStatus is the progress of one node.
type NodeStatus struct {
	Name    string      `json:"name"`
	Role    string      `json:"role"`
	Phase   NodePhase   `json:"phase"`
	Version string      `json:"version,omitempty"` // that it runs
	Since   metav1.Time `json:"since"`             // of the phase
	Message string      `json:"message,omitempty"`
	// Containers are those of a node that is between two programs, as they were before.
	Containers map[string]string `json:"containers,omitempty"`
	// FailedBefore is the time of the node's last failure before this attempt.
	FailedBefore string `json:"failedBefore,omitempty"`
}

// ConditionComplete is the type of the condition that says whether all nodes are in the version.
const ConditionComplete = "Complete"

const (
	defaultAgents  = 5
	defaultReady   = 5 * time.Minute
	defaultGate    = 2 * time.Minute
	defaultPrepare = 30 * time.Minute
	defaultVerify  = 10 * time.Second
)

func (s *Spec) agents() int {
	if s.AgentsAtOnce > 0 {
		return s.AgentsAtOnce
	}
	return defaultAgents
}

func seconds(n int, otherwise time.Duration) time.Duration {
	if n > 0 {
		return time.Duration(n) * time.Second
	}
	return otherwise
}

func (s *Spec) ready() time.Duration   { return seconds(s.ReadySeconds, defaultReady) }
func (s *Spec) gate() time.Duration    { return seconds(s.GateSeconds, defaultGate) }
func (s *Spec) prepare() time.Duration { return seconds(s.PrepareSeconds, defaultPrepare) }

// VerifyTime is for how long the answers of all servers are judged; 0 leaves that out.
func (s *Spec) VerifyTime() time.Duration {
	if s.VerifySeconds == nil {
		return defaultVerify
	}
	return time.Duration(*s.VerifySeconds) * time.Second
}

// confirm is how long a node that is ready waits to be confirmed. The leader judges its gates in
// that time, also one that is elected meanwhile.
func (s *Spec) confirm() time.Duration { return 2*s.gate() + 2*s.VerifyTime() + time.Minute }

// lost is how long a node that is started again may give no answer.
func (s *Spec) lost() time.Duration { return s.ready() + s.confirm() + 2*time.Minute }

var notInName = regexp.MustCompile(`[^a-z0-9.-]+`)

// NameOf is the name of the Upgrade to a version.
func NameOf(version string) string {
	return strings.Trim(notInName.ReplaceAllString(strings.ToLower(version), "-"), "-.")
}

// Paused reports whether the order of the object is to begin no further node now.
func (o *Object) Paused() bool {
	return o.Spec.Paused || o.Spec.PauseAfter != nil && o.Status.Done >= *o.Spec.PauseAfter
}

// Read reads an Upgrade.
func Read(u *unstructured.Unstructured) (*Object, error) {
	o := new(Object)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
		return nil, fmt.Errorf("read the Upgrade %s: %w", u.GetName(), err)
	}
	return o, nil
}

// Unstructured is the object for a dynamic client.
func (o *Object) Unstructured() (*unstructured.Unstructured, error) {
	o.APIVersion, o.Kind = Resource.GroupVersion().String(), Kind
	data, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	u := new(unstructured.Unstructured)
	return u, u.UnmarshalJSON(data)
}

// New returns an Upgrade that is to be created.
func New(spec Spec) *Object {
	return &Object{ObjectMeta: metav1.ObjectMeta{Name: NameOf(spec.Version)}, Spec: spec}
}

// fits returns why a version does not fit the nodes.
func fits(version string, nodes []NodeSeen) error {
	var servers []skew.Server
	for _, n := range nodes {
		if n.server() {
			servers = append(servers, skew.Server{Name: n.Name, Version: n.Version})
		}
	}
	if err := skew.Join("the upgrade", "server", version, servers); err != nil {
		return err
	}
	for _, n := range nodes {
		if n.server() || !n.Alive {
			continue
		}
		target := []skew.Server{{Name: "of the version " + version, Version: version}}
		err := skew.Join("agent "+n.Name, n.Role, n.Version, target)
		if err != nil && !isAhead(n.Version, version) {
			return err
		}
	}
	return nil
}
