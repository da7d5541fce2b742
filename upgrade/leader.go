package upgrade

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/barque/barque/upgrade/part"
	"github.com/barque/barque/upgrade/release"
)

// Node is a node by its name and role.
type Node struct{ Name, Role string }

// ErrUnable is returned for a node whose version takes no orders.
var ErrUnable = errors.New("it takes no orders")

// Files are the checksums and the signature of a release.
type Files struct{ Sums, Signature []byte }

// Cluster is the leader's interface to the cluster.
type Cluster interface {
	// Nodes returns all nodes, without their answers.
	Nodes() []NodeSeen
	// Faults returns why no server may be restarted: voters that do not answer, or are behind.
	Faults(ctx context.Context) []string
	// Busy returns rotations that are under way.
	Busy() []string
	// Containers returns the containers of pods on a node with their IDs and restarts: those that
	// serve, or with all those that are there.
	Containers(node string, all bool) map[string]string
	// Order gives a node an order; a nil one asks for its state. It returns ErrUnable.
	Order(ctx context.Context, to Node, o *part.Order) (*part.Answer, error)
	// HandOver makes a server the leader.
	HandOver(ctx context.Context, to string) error
	// Verify works through all servers. problem is how a promise was broken.
	Verify(ctx context.Context, during time.Duration) (problem string, err error)
	// Release returns the files of a release that a server has, with that checksum if one is given.
	// A release from a URL is brought first. It returns a *part.LastingError.
	Release(ctx context.Context, spec *Spec) (*Files, error)
	// From returns the addresses of archives for a role.
	From(role string) []string
	// Architectures returns those of all nodes.
	Architectures() []string
	// Keys returns the texts of the release keys.
	Keys() []string
	// Audit records an act of the leader.
	Audit(annotations map[string]string)
}

// Leader makes the steps of upgrades while this server leads.
type Leader struct {
	Self    string
	Cluster Cluster
	Objects *Objects
	Logger  *slog.Logger

	verification verification
	releases     releases
}

// releases has the search for a release, which may take long.
type releases struct {
	mu      sync.Mutex
	of      Spec
	running bool
	files   *Files
	err     error
	at      time.Time
}

// verification is the last verification of a term, or the one under way.
type verification struct {
	mu      sync.Mutex
	running bool
	began   time.Time
	outcome Outcome
	problem string
}

const (
	// tick is how often the leader looks while an upgrade is under way.
	tick = time.Second
	// idle is how often it looks otherwise, beside changes of the objects.
	idle = time.Minute
	// askLimit bounds a question to a node.
	askLimit = 5 * time.Second
	// asked is how many nodes are asked at once.
	asked = 32
)

// Run makes the steps until ctx ends. The client's writes are fenced by the term.
func (l *Leader) Run(ctx context.Context, client dynamic.Interface) error {
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	l.verification, l.releases = verification{}, releases{} // of this term
	for {
		changed := l.Objects.Changed()
		pause := idle
		busy, err := l.step(ctx, client, &working)
		if ctx.Err() != nil {
			return nil
		}
		if busy {
			pause = tick
		}
		if err != nil {
			pause = tick
			l.Logger.Warn("an upgrade does not go on, and is tried again", "err", err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-changed:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// current returns the Upgrade that is to be made, nil if there is none.
func current(all []*Object) *Object {
	slices.SortFunc(all, func(a, b *Object) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	open := slices.DeleteFunc(slices.Clone(all), func(o *Object) bool {
		return o.DeletionTimestamp != nil || o.Status.Phase.Ended() && o.Spec.Attempt <= o.Status.Attempt
	})
	for _, o := range open {
		if o.Status.Phase != "" && !o.Status.Phase.Ended() {
			return o
		}
	}
	if len(open) == 0 {
		return nil
	}
	return open[0]
}

// step makes one step. It returns whether an upgrade is under way.
func (l *Leader) step(ctx context.Context, client dynamic.Interface, working *sync.WaitGroup) (bool, error) {
	if l.Objects.Synced() && current(l.Objects.All()) == nil {
		return false, nil
	}
	list, err := client.Resource(Resource).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) { // the definition is not there yet
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("list Upgrades: %w", err)
	}
	var all []*Object
	for i := range list.Items {
		o, err := Read(&list.Items[i])
		if err != nil {
			l.Logger.Warn("an object is left out", "err", err)
			continue
		}
		all = append(all, o)
	}
	o := current(all)
	if o == nil {
		return false, nil
	}
	seen := l.look(ctx, o, working)
	plan := Decide(o.Spec, o.Status, seen, time.Now())
	if err := l.write(ctx, client, o, plan.Status); err != nil {
		return true, err
	}
	for _, act := range plan.Acts {
		if err := l.act(ctx, o, act, working); err != nil && ctx.Err() == nil {
			l.Logger.Warn("a step of an upgrade is tried again", "node", act.Node, "step", act.Do, "err", err)
		}
	}
	return !plan.Status.Phase.Ended(), nil
}

// look collects the leader's view for a decision.
func (l *Leader) look(ctx context.Context, o *Object, working *sync.WaitGroup) Seen {
	seen := Seen{Leader: l.Self, Nodes: l.Cluster.Nodes()}
	status := &o.Status
	files, err := l.release(ctx, o, working)
	if files != nil {
		seen.Release, seen.Checksum = true, release.Digest(files.Sums)
	}
	if err != nil {
		var lasting *part.LastingError
		seen.Missing, seen.Lasting = err.Error(), errors.As(err, &lasting)
	}
	if status.Phase == Running || status.Phase == Paused || status.Phase == Preparing {
		seen.Faults, seen.Busy = l.Cluster.Faults(ctx), l.Cluster.Busy()
	}
	wanted := l.wanted(o)
	var mu sync.Mutex
	var asking sync.WaitGroup
	slots := make(chan struct{}, asked)
	for i := range seen.Nodes {
		n := &seen.Nodes[i]
		if !slices.Contains(wanted, n.Name) {
			continue
		}
		slots <- struct{}{}
		asking.Go(func() { // ends within askLimit
			defer func() { <-slots }()
			limited, cancel := context.WithTimeout(ctx, askLimit)
			defer cancel()
			answer, err := l.Cluster.Order(limited, Node{n.Name, n.Role}, nil)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				n.Err, n.Unable = err.Error(), errors.Is(err, ErrUnable)
				return
			}
			n.Answer = answer
		})
	}
	asking.Wait()
	for i := range seen.Nodes {
		n := &seen.Nodes[i]
		if slices.Contains(wanted, n.Name) {
			n.Containers = l.Cluster.Containers(n.Name, l.phaseOf(o, n.Name).active())
		}
	}
	v := &l.verification
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.running && !slices.ContainsFunc(status.Nodes, func(n NodeStatus) bool {
		return n.Phase.active() && n.Phase != Confirming && v.began.Before(n.Since.Time)
	}) {
		seen.Verified, seen.Problem = v.outcome, v.problem
	}
	return seen
}

func (l *Leader) phaseOf(o *Object, name string) NodePhase {
	for _, n := range o.Status.Nodes {
		if n.Name == name {
			return n.Phase
		}
	}
	return Waiting
}

// wanted are the nodes that are asked: those between two programs, or those that are next.
func (l *Leader) wanted(o *Object) (names []string) {
	for _, n := range o.Status.Nodes {
		if n.Phase.active() {
			names = append(names, n.Name)
		}
	}
	if len(names) > 0 {
		return names
	}
	servers, agents := 0, 0
	for _, n := range o.Status.Nodes {
		if n.Phase != Waiting && n.Phase != Prepared || o.Status.Phase == Preparing && n.Phase == Prepared {
			continue
		}
		if n.Role == "server" {
			servers++
			names = append(names, n.Name)
		} else if agents < preparing {
			agents++
			names = append(names, n.Name)
		}
	}
	return names
}

// write writes the status if it has changed.
func (l *Leader) write(ctx context.Context, client dynamic.Interface, o *Object, status Status) error {
	before := o.Status
	if same(before, status) {
		return nil
	}
	o.Status = status
	u, err := o.Unstructured()
	if err == nil {
		u, err = client.Resource(Resource).UpdateStatus(ctx, u, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write the status of the Upgrade %s: %w", o.Name, err)
	}
	o.ResourceVersion = u.GetResourceVersion()
	l.report(o, before, status)
	return nil
}

func same(a, b Status) bool {
	x, err := json.Marshal(a)
	y, other := json.Marshal(b)
	return err == nil && other == nil && reflect.DeepEqual(x, y)
}

// report logs and records the changes of phases.
func (l *Leader) report(o *Object, before, after Status) {
	if before.Phase != after.Phase {
		l.Logger.Info("an upgrade goes on", "version", o.Spec.Version, "phase", after.Phase, "message", after.Message)
		l.Cluster.Audit(Annotations(o.Spec.Version, "", string(after.Phase), after.Message))
	}
	was := map[string]NodePhase{}
	for _, n := range before.Nodes {
		was[n.Name] = n.Phase
	}
	for _, n := range after.Nodes {
		if n.Phase == was[n.Name] || n.Phase == Waiting || n.Phase == Prepared || n.Phase == Checking {
			continue
		}
		l.Logger.Info("a node in an upgrade", "node", n.Name, "version", o.Spec.Version, "phase", n.Phase, "message",
			n.Message)
		l.Cluster.Audit(Annotations(o.Spec.Version, n.Name, string(n.Phase), n.Message))
	}
}

// Prefix of the annotations of audit events.
const Prefix = "upgrade.barque.io/"

// Annotations are those of an audit event. Empty ones are left out.
func Annotations(version, node, phase, message string) map[string]string {
	out := map[string]string{}
	for name, value := range map[string]string{"version": version, "node": node, "phase": phase, "message": message} {
		if value != "" {
			out[Prefix+name] = value
		}
	}
	return out
}

// act makes an act.
func (l *Leader) act(ctx context.Context, o *Object, act Act, working *sync.WaitGroup) error {
	switch act.Do {
	case HandOver:
		return l.Cluster.HandOver(ctx, act.Node)
	case Verify:
		l.verify(ctx, o, working)
		return nil
	}
	role := ""
	for _, n := range o.Status.Nodes {
		if n.Name == act.Node {
			role = n.Role
		}
	}
	order := &part.Order{Do: act.Do, Version: o.Spec.Version, Why: act.Why,
		ReadySeconds:   int(o.Spec.ready().Seconds()),
		ConfirmSeconds: int(o.Spec.confirm().Seconds())}
	if act.Do == part.Prepare {
		files, err := l.release(ctx, o, working)
		if files == nil {
			return cmp.Or(err, errors.New("the release is looked for"))
		}
		order.Sums, order.Signature, order.Unsigned = files.Sums, files.Signature, o.Spec.Unsigned
		order.From, order.Keys = l.Cluster.From(role), l.Cluster.Keys()
		order.Architectures = l.Cluster.Architectures()
	}
	limited, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	_, err := l.Cluster.Order(limited, Node{act.Node, role}, order)
	return err
}

// releaseAgain is the pause after a failed search for a release.
const releaseAgain = 10 * time.Second

// release returns the files of the upgrade's release as far as they are known, and lets them be
// brought.
func (l *Leader) release(ctx context.Context, o *Object, working *sync.WaitGroup) (*Files, error) {
	r := &l.releases
	r.mu.Lock()
	defer r.mu.Unlock()
	spec := o.Spec
	spec.Checksum = cmp.Or(spec.Checksum, o.Status.Checksum)
	if !reflect.DeepEqual(r.of, spec) && !r.running {
		r.of, r.files, r.err, r.at = spec, nil, errors.New("the release is looked for"), time.Time{}
	}
	if r.files != nil || r.running || time.Since(r.at) < releaseAgain {
		return r.files, r.err
	}
	r.running = true
	working.Go(func() { // ends with ctx
		files, err := l.Cluster.Release(ctx, &spec)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.running, r.files, r.err, r.at = false, files, err, time.Now()
	})
	return nil, r.err
}

// verify begins a verification, unless one is under way or has just failed.
func (l *Leader) verify(ctx context.Context, o *Object, working *sync.WaitGroup) {
	during := o.Spec.VerifyTime()
	v := &l.verification
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.running || during == 0 {
		return
	}
	v.running, v.began, v.outcome = true, time.Now(), Unknown
	working.Go(func() { // ends with ctx
		problem, err := l.Cluster.Verify(ctx, during)
		v.mu.Lock()
		defer v.mu.Unlock()
		v.running = false
		switch {
		case err != nil:
			v.problem = "the servers could not be verified: " + err.Error()
		case problem != "":
			v.outcome, v.problem = Broken, problem
		default:
			v.outcome, v.problem = Passed, ""
		}
	})
}

// Text describes an upgrade in a line.
func (o *Object) Text() string {
	s := &o.Status
	text := fmt.Sprintf("to %s: %s", o.Spec.Version, strings.ToLower(cmp.Or(string(s.Phase), "not begun")))
	if s.Total > 0 {
		text += ", " + strconv.Itoa(s.Done) + " of " + strconv.Itoa(s.Total) + " nodes done"
	}
	if s.Message != "" {
		text += "; " + s.Message
	}
	return text
}
