package upgrade

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	semver "k8s.io/apimachinery/pkg/util/version"

	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/upgrade/part"
)

// NodeSeen is a node in the leader's view.
type NodeSeen struct {
	Name, Role string
	Version    string // by gossip, or by its answer
	Alive      bool
	Voter      bool
	// Answer is that of the node, nil if it was not asked, or Err is why there is none. Unable is
	// set if its version takes no orders.
	Answer *part.Answer
	Err    string
	Unable bool
	// Containers are those that run on the node, for the nodes that are about to restart and those
	// that are being checked.
	Containers map[string]string
}

func (n *NodeSeen) server() bool { return n.Role == "server" }

// Seen is the leader's view of the cluster.
type Seen struct {
	Leader string
	Nodes  []NodeSeen
	// Release is set if the leader has the release, or Missing why not. Lasting is set if another
	// look finds the same.
	Release bool
	// Checksum is that of the leader's release.
	Checksum string
	Missing  string
	Lasting  bool
	// Faults are why no server may be restarted now: voters that do not answer, or are behind.
	Faults []string
	// Busy are rotations that are under way. They are let end first.
	Busy []string
	// Verified is the outcome of the last verification that began after all nodes that are being
	// checked were ready.
	Verified Outcome
	Problem  string // of a verification that has failed
}

// Outcome of a verification.
type Outcome int

// Outcomes.
const (
	Unknown Outcome = iota
	Passed
	Broken
)

// Act is an act of the leader.
type Act struct {
	Node string // that gets the order; for HandOver the server that is to lead
	Do   part.Do
	Why  string
}

// Acts beside the orders to nodes.
const (
	HandOver part.Do = "handOver"
	Verify   part.Do = "verify"
)

// Plan is the next status, and the acts that follow once it is written.
type Plan struct {
	Status Status
	Acts   []Act
}

// decision is one decision on its way.
type decision struct {
	spec Spec
	seen Seen
	now  time.Time
	Plan
}

// Decide returns the next steps of an upgrade.
func Decide(spec Spec, status Status, seen Seen, now time.Time) Plan {
	d := &decision{spec: spec, seen: seen, now: now, Plan: Plan{Status: status}}
	d.Status.Nodes = slices.Clone(status.Nodes)
	d.Status.Conditions = slices.Clone(status.Conditions)
	if d.Status.Phase.Ended() && spec.Attempt > d.Status.Attempt {
		d.Status.Phase, d.Status.Ended = "", nil
	}
	if d.Status.Phase.Ended() {
		return d.Plan
	}
	if d.Status.Phase == "" {
		d.begin()
	}
	if d.seen.Release && d.Status.Checksum == "" {
		d.Status.Checksum = d.seen.Checksum
	}
	d.spec.Checksum = d.Status.Checksum
	d.merge()
	switch d.Status.Phase {
	case Preparing:
		d.prepare()
	case Running, Paused:
		d.run()
	}
	d.count()
	return d.Plan
}

// begin begins an attempt.
func (d *decision) begin() {
	s := &d.Status
	s.Phase, s.Attempt, s.Message, s.Checksum = Preparing, d.spec.Attempt, "", d.spec.Checksum
	s.Direction = d.direction()
	if s.Began == nil {
		s.Began = &metav1.Time{Time: d.now}
	}
	for i := range s.Nodes {
		if n := &s.Nodes[i]; n.Phase != Done && !n.Phase.active() {
			d.enter(n, Waiting, "")
		}
	}
	if err := fits(d.spec.Version, d.seen.Nodes); err != nil {
		d.end(Failed, "VersionDoesNotFit", "nothing was changed: "+err.Error())
	}
}

// direction compares the version with that of the servers. Builds between releases of one minor
// version have no order, and go up.
func (d *decision) direction() Direction {
	for _, n := range d.seen.Nodes {
		if n.server() && isAhead(n.Version, d.spec.Version) {
			return Down
		}
	}
	return Up
}

// isAhead reports whether version a is later than b.
func isAhead(a, b string) bool {
	x, y := version.Parse(a), version.Parse(b)
	if c := x.Minor().Compare(y.Minor()); c != 0 {
		return c > 0
	}
	p, err := semver.ParseSemantic(x.String())
	q, other := semver.ParseSemantic(y.String())
	if err != nil || other != nil {
		return false
	}
	development := strings.Contains(p.PreRelease()+q.PreRelease(), "dev")
	return !development && q.LessThan(p)
}

// merge brings the nodes of the status up to date with those that are there.
func (d *decision) merge() {
	s := &d.Status
	s.Nodes = slices.DeleteFunc(s.Nodes, func(n NodeStatus) bool { return d.node(n.Name) == nil && !n.Phase.active() })
	for _, seen := range d.seen.Nodes {
		i := slices.IndexFunc(s.Nodes, func(n NodeStatus) bool { return n.Name == seen.Name })
		if i < 0 {
			s.Nodes = append(s.Nodes, NodeStatus{Name: seen.Name, Role: seen.Role, Phase: Waiting,
				Since: metav1.Time{Time: d.now}})
			i = len(s.Nodes) - 1
		}
		n := &s.Nodes[i]
		if v := seen.version(); v != "" {
			n.Version = v
		}
	}
	slices.SortFunc(s.Nodes, func(a, b NodeStatus) int {
		return cmp.Or(-cmp.Compare(a.Role, b.Role), cmp.Compare(a.Name, b.Name)) // servers first
	})
	for i := range s.Nodes {
		n := &s.Nodes[i]
		seen := d.node(n.Name)
		in := seen != nil && version.Parse(seen.version()).String() == d.spec.Version
		switch {
		case n.Phase == Waiting && in && (seen.Answer == nil || !seen.Answer.Trial):
			d.enter(n, Done, "it was in this version")
		case n.Phase == Done && seen != nil && seen.Alive && seen.version() != "" && !in &&
			d.now.Sub(n.Since.Time) > gossipLate:
			d.enter(n, Waiting, "it has left the version")
			if s.Phase != Preparing {
				s.Phase = Preparing
			}
		}
	}
}

// gossipLate is how long gossip may still have a node's version of before.
const gossipLate = 2 * time.Minute

// preparing is how many agents get the program at once.
const preparing = 32

// version is that of the node's answer, or that of gossip.
func (n *NodeSeen) version() string {
	if n.Answer != nil {
		return n.Answer.Version
	}
	return version.Parse(n.Version).String()
}

func (d *decision) node(name string) *NodeSeen {
	for i := range d.seen.Nodes {
		if d.seen.Nodes[i].Name == name {
			return &d.seen.Nodes[i]
		}
	}
	return nil
}

func (d *decision) enter(n *NodeStatus, phase NodePhase, message string) {
	n.Phase, n.Message, n.Since = phase, message, metav1.Time{Time: d.now}
	if !phase.active() {
		n.Containers, n.FailedBefore = nil, ""
	}
}

func (d *decision) act(node string, do part.Do, why string) {
	d.Acts = append(d.Acts, Act{node, do, why})
}

// end ends the attempt.
func (d *decision) end(phase Phase, reason, message string) {
	s := &d.Status
	s.Phase, s.Message, s.Ended = phase, message, &metav1.Time{Time: d.now}
	state := metav1.ConditionFalse
	if phase == Complete {
		state = metav1.ConditionTrue
	}
	d.condition(state, reason, message)
}

func (d *decision) condition(state metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{Type: ConditionComplete, Status: state,
		Reason: reason, Message: message, LastTransitionTime: metav1.Time{Time: d.now}})
}

// wait shows for what the upgrade waits.
func (d *decision) wait(reason, message string) {
	d.Status.Message = message
	d.condition(metav1.ConditionFalse, reason, message)
}

func (d *decision) count() {
	s := &d.Status
	s.Done, s.Total = 0, len(s.Nodes)
	for _, n := range s.Nodes {
		if n.Phase == Done {
			s.Done++
		}
	}
}

// prepare gives all nodes the program, the servers first: the agents get it from them.
func (d *decision) prepare() {
	if !d.seen.Release {
		if d.seen.Lasting {
			d.end(Failed, "ReleaseRefused", "nothing was changed: "+d.seen.Missing)
			return
		}
		if d.now.Sub(d.Status.Began.Time) > d.spec.prepare() && d.Status.Done == 0 {
			d.end(Failed, "ReleaseMissing", "nothing was changed: "+d.seen.Missing)
			return
		}
		d.wait("ReleaseMissing", d.seen.Missing)
		return
	}
	agents, missing := 0, []string{}
	for _, role := range []string{"server", "agent"} {
		if role == "agent" && len(missing) > 0 {
			break
		}
		for i := range d.Status.Nodes {
			n := &d.Status.Nodes[i]
			if n.Role != role || n.Phase != Waiting {
				continue
			}
			if role == "agent" {
				if agents++; agents > preparing {
					missing = append(missing, n.Name)
					continue
				}
			}
			if !d.prepareNode(n) {
				missing = append(missing, n.Name)
			}
			if d.Status.Phase.Ended() {
				return
			}
		}
	}
	if len(missing) > 0 {
		d.wait("Preparing", "the program goes to the nodes: "+firstOf(missing))
		return
	}
	d.Status.Phase = Running
	d.run()
}

// prepareNode returns whether there is nothing to wait for.
func (d *decision) prepareNode(n *NodeStatus) bool {
	seen := d.node(n.Name)
	late := d.now.Sub(n.Since.Time) > d.spec.prepare()
	var why string
	switch {
	case seen.Unable:
		why = n.Name + " takes no orders: its version is too early for that; upgrade it by hand first"
	case !seen.Alive && n.Role == "agent":
		d.enter(n, Skipped, "it shows no life; start it, and begin another attempt")
		return true
	case seen.Answer == nil && !late:
		n.Message = seen.Err
		d.act(n.Name, part.Prepare, "")
		return false
	case seen.Answer == nil:
		why = n.Name + " does not answer: " + seen.Err
	case seen.Answer.Prepared == d.spec.Version && seen.Answer.Sums == d.spec.Checksum:
		d.enter(n, Prepared, "")
		return true
	case seen.Answer.Problem != "" && seen.Answer.Sums == d.spec.Checksum && (seen.Answer.Lasting || late):
		why = n.Name + ": " + seen.Answer.Problem
	case late:
		why = n.Name + " has not got the program in time"
	default:
		n.Message = seen.Answer.Problem
		d.act(n.Name, part.Prepare, "")
		return false
	}
	text := "nothing was changed: "
	if slices.ContainsFunc(d.Status.Nodes, func(n NodeStatus) bool { return n.Phase == Done }) {
		text = "it stops before " + n.Name + ": "
	}
	n.Message = why
	d.end(Failed, "NotPrepared", text+why)
	return false
}

// run goes on with the nodes that are between two programs, or begins with the next ones.
func (d *decision) run() {
	active, broken := 0, []*NodeStatus{}
	ready := d.checked()
	for i := range d.Status.Nodes {
		n := &d.Status.Nodes[i]
		if n.Phase.active() {
			d.follow(n, ready)
		}
		if n.Phase.active() {
			active++
		}
		if n.Phase.broken() {
			broken = append(broken, n)
		}
	}
	switch {
	case active > 0:
		if d.Status.Phase == Paused {
			d.Status.Phase = Running
		}
		d.wait("Running", d.doing())
	case len(broken) > 0:
		d.fail(broken)
	default:
		d.next()
	}
}

// checked reports whether all active nodes have come to their check.
func (d *decision) checked() bool {
	return !slices.ContainsFunc(d.Status.Nodes,
		func(n NodeStatus) bool { return n.Phase == Restarting || n.Phase == TakingBack })
}

// follow goes on with an active node.
func (d *decision) follow(n *NodeStatus, ready bool) {
	seen := d.node(n.Name)
	var a *part.Answer
	if seen != nil {
		a = seen.Answer
	}
	since := d.now.Sub(n.Since.Time)
	if a == nil {
		if since > d.spec.lost() {
			why := "it has left the cluster"
			if seen != nil {
				why = "it does not answer any more: " + seen.Err
			}
			d.enter(n, Lost, why)
		} else if n.Phase == Checking && since > d.spec.gate() && seen != nil {
			n.Message = "it does not answer: " + seen.Err
		}
		return
	}
	in := a.Version == d.spec.Version
	if !in && a.Failed != nil && a.Failed.Version == d.spec.Version && stamp(a) != n.FailedBefore {
		if a.Ready {
			message := a.Failed.Why
			if n.Phase == TakingBack {
				message = n.Message
			}
			d.enter(n, TakenBack, message)
		}
		return
	}
	switch n.Phase {
	case Restarting:
		switch {
		case in && a.Ready:
			d.enter(n, Checking, "")
			d.act(n.Name, Verify, "")
		case !in && !a.Stopping && a.Prepared != d.spec.Version:
			d.act(n.Name, part.Prepare, "") // it was started again meanwhile
		case !in && !a.Stopping:
			d.act(n.Name, part.Try, "")
		}
	case Checking:
		d.check(n, seen, since, ready)
	case Confirming:
		if in && !a.Trial {
			d.enter(n, Done, "")
			return
		}
		d.act(n.Name, part.Confirm, "")
	case TakingBack:
		if in {
			d.act(n.Name, part.TakeBack, n.Message)
		} else if a.Ready {
			d.enter(n, TakenBack, n.Message)
		}
	}
	if n.Phase.active() && d.now.Sub(n.Since.Time) > d.spec.lost() {
		d.enter(n, Lost, "it does not come to an end: it runs version "+a.Version)
	}
}

// stamp identifies the last failure of a node.
func stamp(a *part.Answer) string {
	if a == nil || a.Failed == nil {
		return ""
	}
	return a.Failed.At.UTC().Format(time.RFC3339Nano)
}

// check judges the gates of a node.
func (d *decision) check(n *NodeStatus, seen *NodeSeen, since time.Duration, ready bool) {
	if touched := Touched(n.Containers, seen.Containers); len(touched) > 0 {
		d.takeBack(n, "containers were not left alone: "+strings.Join(touched, ", "))
		return
	}
	var waits string
	switch {
	case !seen.Answer.Ready:
		waits = "it is not ready"
	case n.Role == "server" && len(d.seen.Faults) > 0:
		waits = strings.Join(d.seen.Faults, ", ")
	case d.spec.VerifyTime() == 0 && ready, d.seen.Verified == Passed:
		d.enter(n, Confirming, "")
		d.act(n.Name, part.Confirm, "")
		return
	case d.seen.Verified == Broken:
		d.takeBack(n, "the cluster has not kept its promises: "+d.seen.Problem)
		return
	default:
		waits = cmp.Or(d.seen.Problem, "all servers are verified")
		if ready {
			d.act(n.Name, Verify, "")
		}
	}
	n.Message = waits
	if since > d.spec.gate()+2*d.spec.VerifyTime() {
		d.takeBack(n, "a gate was not passed in time: "+waits)
	}
}

func (d *decision) takeBack(n *NodeStatus, why string) {
	containers, failed := n.Containers, n.FailedBefore
	d.enter(n, TakingBack, why)
	n.Containers, n.FailedBefore = containers, failed
	d.act(n.Name, part.TakeBack, why)
}

// Touched returns the containers that are others than before, or were restarted. Those that are
// gone with their pod are left out.
func Touched(before, now map[string]string) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if is, there := now[name]; there && is != before[name] {
			out = append(out, fmt.Sprintf("%s was %s and is %s", name, before[name], is))
		}
	}
	return out
}

// fail ends the attempt with nodes that are back, or lost.
func (d *decision) fail(broken []*NodeStatus) {
	reason, texts := "NodeTakenBack", []string{}
	for _, n := range broken {
		text := fmt.Sprintf("%s was taken back to %s: %s", n.Name, n.Version, n.Message)
		if n.Phase == Lost {
			reason, text = "NodeLost", n.Name+" is lost: "+n.Message
		}
		texts = append(texts, text)
	}
	d.end(Failed, reason, strings.Join(texts, "; ")+"; "+d.mixture())
}

// mixture describes which nodes run which version.
func (d *decision) mixture() string {
	by := map[string][]string{}
	for _, n := range d.Status.Nodes {
		by[n.Version] = append(by[n.Version], n.Name)
	}
	var texts []string
	for _, v := range slices.Sorted(maps.Keys(by)) {
		texts = append(texts, fmt.Sprintf("version %s: %s", cmp.Or(v, "unknown"), firstOf(by[v])))
	}
	return strings.Join(texts, "; ")
}

const shownNodes = 5

// firstOf lists names, some of many.
func firstOf(names []string) string {
	if more := len(names) - shownNodes; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shownNodes], ", "), more)
	}
	return strings.Join(names, ", ")
}

// doing describes the active nodes.
func (d *decision) doing() string {
	var texts []string
	for _, n := range d.Status.Nodes {
		if n.Phase.active() {
			text := n.Name + " is " + strings.ToLower(string(n.Phase))
			if n.Message != "" {
				text += ": " + n.Message
			}
			texts = append(texts, text)
		}
	}
	return firstOf(texts)
}

// next begins with the next nodes.
func (d *decision) next() {
	s := &d.Status
	servers, agents := d.left("server"), d.left("agent")
	if len(servers)+len(agents) == 0 {
		d.finish()
		return
	}
	d.count()
	if d.spec.Paused || d.spec.PauseAfter != nil && s.Done >= *d.spec.PauseAfter && s.Done > 0 {
		s.Phase = Paused
		d.wait("Paused", fmt.Sprintf("paused with %d of %d nodes in version %s", s.Done, len(s.Nodes), d.spec.Version))
		return
	}
	s.Phase = Running
	if waits := slices.Concat(d.seen.Busy, d.seen.Faults); len(waits) > 0 {
		d.wait("ClusterNotReady", "waits before the next node: "+strings.Join(waits, ", "))
		return
	}
	first := servers
	if s.Direction == Down && len(agents) > 0 || len(servers) == 0 {
		d.nextAgents(agents)
		return
	}
	d.nextServer(first)
}

// left returns the nodes of a role that are still to be upgraded.
func (d *decision) left(role string) (out []*NodeStatus) {
	for i := range d.Status.Nodes {
		if n := &d.Status.Nodes[i]; n.Role == role && (n.Phase == Prepared || n.Phase == Waiting) {
			out = append(out, n)
		}
	}
	return out
}

func (d *decision) nextAgents(agents []*NodeStatus) {
	var begun []string
	for _, n := range agents {
		if len(begun) == d.spec.agents() {
			break
		}
		if seen := d.node(n.Name); !seen.Alive {
			d.enter(n, Skipped, "it shows no life; start it, and begin another attempt")
			continue
		}
		if d.restart(n) {
			begun = append(begun, n.Name)
		}
	}
	d.wait("Running", d.doing())
}

// nextServer restarts a server. The leader is the last one: it hands over, and the next leader goes
// on.
func (d *decision) nextServer(servers []*NodeStatus) {
	for _, n := range servers {
		if n.Name != d.seen.Leader {
			d.restart(n)
			d.wait("Running", d.doing())
			return
		}
	}
	for _, of := range d.seen.Nodes {
		i := slices.IndexFunc(d.Status.Nodes, func(n NodeStatus) bool { return n.Name == of.Name })
		if of.server() && of.Voter && of.Name != d.seen.Leader && d.Status.Nodes[i].Phase == Done {
			d.wait("Running", fmt.Sprintf("the leader %s hands over to %s", d.seen.Leader, of.Name))
			d.act(of.Name, HandOver, "an upgrade restarts the leader last")
			return
		}
	}
	d.restart(servers[0]) // alone, or the only voter
	d.wait("Running", d.doing())
}

// restart begins with a node whose present state is known.
func (d *decision) restart(n *NodeStatus) bool {
	seen := d.node(n.Name)
	if seen.Answer == nil || seen.Containers == nil {
		n.Message = cmp.Or(seen.Err, "it is asked")
		return false
	}
	if n.Phase == Waiting { // it has come while the others were upgraded
		if !d.prepareNode(n) {
			return false
		}
	}
	d.enter(n, Restarting, "")
	n.Containers, n.FailedBefore = seen.Containers, stamp(seen.Answer)
	d.act(n.Name, part.Try, "")
	return true
}

// finish ends an upgrade with nothing left to do.
func (d *decision) finish() {
	var skipped []string
	for _, n := range d.Status.Nodes {
		if n.Phase == Skipped {
			skipped = append(skipped, n.Name)
		}
	}
	if len(skipped) > 0 {
		d.end(Incomplete, "NodesSkipped", fmt.Sprintf("nodes without a sign of life were left out: %s; %s",
			firstOf(skipped), d.mixture()))
		return
	}
	d.end(Complete, "AllNodesDone", "all nodes run version "+d.spec.Version)
}
