// Package node registers this node with the API server and keeps its status true.
//
// It owns the Node object's status, except for conditions and resources of other writers, and the
// labels that describe the machine. It writes only changes that matter to others: a healthy idle
// node writes nothing, for its heartbeat travels by gossip. When another writer has changed a value
// that this node knows better (the node controller sets Unknown for a node that has come back), it
// corrects the value after a pause.
//
// A node that has the taint of an unreachable node, and reaches the API server all the same,
// repeats its conditions with new times. So the node controller learns that it lives when gossip
// and the controller's own path are cut. A node without a path to the API server cannot write, and
// a healthy one has no such taint.
package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is the Reporter's interface to the container runtime.
type Runtime interface {
	Status(ctx context.Context) (*runtimeapi.StatusResponse, error)
	Version(ctx context.Context) (*runtimeapi.VersionResponse, error)
}

// The names that a node and a cloud's controller have in common, of k8s.io/cloud-provider/api.
const (
	taintUninitialized = "node.cloudprovider.kubernetes.io/uninitialized"
	providedIP         = "alpha.kubernetes.io/provided-node-ip"
)

// Images lists the runtime's images.
type Images interface {
	ListImages(ctx context.Context) ([]*runtimeapi.Image, error)
}

// Config describes the node.
type Config struct {
	Name string
	IPs  []string
	// ExternalIPs are addresses of the type ExternalIP.
	ExternalIPs []string
	Hostname    string
	ProviderID  string
	Labels      map[string]string
	Taints      []v1.Taint // put on the node when it is first registered
	// ExternalCloud leaves it to a cloud's controller to initialize the node. The node registers
	// with the taint that this controller takes away, and an annotation with its own addresses.
	// Once its Node has addresses, they are the cloud's to change.
	ExternalCloud bool
	Version       string // of the kubelet, as Kubernetes counts
	Port          int32  // of the node's own server
	MaxPods       int64
	Reserved      v1.ResourceList
	RootDir       string
	Machine       Machine

	Client  kubernetes.Interface
	Runtime Runtime
	Images  Images
	// Short returns the conditions of pressure that the node has. It may be nil.
	Short func() []v1.NodeConditionType
	// Down reports whether the machine goes down. It may be nil.
	Down func() bool
	// InUse names the volumes that must not be detached from the node. While they are not known,
	// the API server's stay. It may be nil.
	InUse func() (names []v1.UniqueVolumeName, known bool)
	// Found is called with the node's faults after each check. It may be nil.
	Found func(Faults)
	// Moved is called when this node has other internal addresses than the Node object had. It may
	// be nil.
	Moved  func(before, now []string)
	Logger *slog.Logger
	Now    func() time.Time // time.Now when nil
}

// Reporter keeps the Node object.
type Reporter struct {
	Config
	wake chan struct{}
	// compared is set once the addresses of the existing Node object have been compared. Only Run
	// touches it.
	compared bool

	mu          sync.Mutex
	observed    *v1.Node // the newest that the API server is known to have
	allocatable v1.ResourceList
}

// How often the node is checked, and how long other writers' changes stay before
// they are corrected.
const (
	lookEvery   = 10 * time.Second
	lookUnready = 500 * time.Millisecond
	retryAfter  = time.Second
	// refusedAtMost is the longest time from one refusal of the Node to the next attempt.
	refusedAtMost = 30 * time.Second
	// quickRefusals is the number of refusals in a row that may end soon by themselves: gossip is
	// slow at times.
	quickRefusals = 10
	// sayAgainAfter is the number of failures for one line in the log.
	sayAgainAfter = 30
	correctAfter  = 5 * time.Second
	repeatAfter   = 10 * time.Second // while this node is called unreachable
)

// New returns a reporter.
func New(config Config) (*Reporter, error) {
	if config.Now == nil {
		config.Now = time.Now
	}
	disk, err := diskSize(config.RootDir)
	if err != nil {
		return nil, err
	}
	_, allocatable := resources(config.Machine, disk, config.MaxPods, config.Reserved)
	return &Reporter{Config: config, allocatable: allocatable, wake: make(chan struct{}, 1)}, nil
}

// Allocatable returns the resources that pods on this node can have.
func (r *Reporter) Allocatable() v1.ResourceList {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.allocatable
}

// Node returns the newest known Node object with the node's own allocatable resources.
func (r *Reporter) Node() *v1.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.observed == nil {
		labels := map[string]string{v1.LabelHostname: r.Hostname, v1.LabelOSStable: r.Machine.Info.OperatingSystem,
			v1.LabelArchStable: r.Machine.Info.Architecture}
		maps.Copy(labels, r.Labels)
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.Name, Labels: labels},
			Spec:   v1.NodeSpec{Taints: r.Taints},
			Status: v1.NodeStatus{Allocatable: r.allocatable}}
	}
	return r.withOwn(r.observed)
}

// withOwn returns a Node with the node's own allocatable resources. r.mu is held.
func (r *Reporter) withOwn(observed *v1.Node) *v1.Node {
	node := *observed
	node.Status.Allocatable = maps.Clone(observed.Status.Allocatable)
	if node.Status.Allocatable == nil {
		node.Status.Allocatable = v1.ResourceList{}
	}
	maps.Copy(node.Status.Allocatable, r.allocatable)
	return &node
}

// newestPatience bounds the wait for the API server in Newest.
const newestPatience = 5 * time.Second

// Newest is Node with the API server's present object, which a watch may deliver late. It is nil
// when there is no answer.
func (r *Reporter) Newest() *v1.Node {
	ctx, cancel := context.WithTimeout(context.Background(), newestPatience)
	defer cancel()
	node, err := r.Client.CoreV1().Nodes().Get(ctx, r.Name, metav1.GetOptions{})
	if err != nil {
		r.Logger.Warn("cannot ask for the newest labels and taints of this node; going by those that are known",
			"err", err)
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.withOwn(node)
}

// Registered returns the API server's Node object; nil before it is known.
func (r *Reporter) Registered() *v1.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.observed
}

// Look makes the node be checked soon, after a change.
func (r *Reporter) Look() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Observe takes the API server's object of this node.
func (r *Reporter) Observe(node *v1.Node) {
	r.mu.Lock()
	r.observed = node
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run registers the node and keeps its status until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last *v1.Node      // the last status that was written or confirmed
	var disputed time.Time // since when the API server's object has differed
	var failing failures
	var written time.Time // when it was last written
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-r.wake:
			if last == nil {
				continue // the timer is set
			}
		}
		wanted, err := r.wanted(ctx)
		if err != nil {
			r.Logger.Warn("cannot look at this machine; trying again", "err", err)
			timer.Reset(retryAfter)
			continue
		}
		next := lookEvery
		if !isReady(wanted) {
			next = lookUnready
		}
		now := r.Now()
		repeat := r.doubted() && now.Sub(written) >= repeatAfter
		news := last == nil || repeat || !same(last, wanted)
		switch {
		case !repeat && !r.differs(wanted):
			disputed = time.Time{}
		case !news && disputed.IsZero():
			disputed = now
			fallthrough
		case !news && now.Sub(disputed) < correctAfter:
			timer.Reset(min(next, correctAfter-now.Sub(disputed)))
			continue
		default:
			if err := r.write(ctx, wanted, repeat); err != nil {
				wait, news := failing.add(err)
				if ctx.Err() == nil && news {
					r.Logger.Warn("cannot report this node; trying again", "err", err, "retryIn", wait)
				}
				timer.Reset(wait)
				continue
			}
			failing = failures{}
			disputed, written = time.Time{}, now
		}
		last = wanted
		if r.doubted() {
			next = min(next, max(retryAfter, written.Add(repeatAfter).Sub(now)))
		}
		timer.Reset(next)
	}
}

// failures are the failed writes of the Node in a row.
type failures struct {
	n       int
	refused int // the last ones in a row
	wait    time.Duration
}

// add returns the wait before the next attempt, and whether to log the error. A refusal, such as
// one of an admission policy, stays until its cause is changed: after some refusals, the wait
// doubles each time. A server that is away may come back at any time.
func (f *failures) add(err error) (wait time.Duration, news bool) {
	was := f.refused > 0
	f.n, f.refused = f.n+1, f.refused+1
	if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
		f.refused = 0
	}
	news = f.n%sayAgainAfter == 1 || was != (f.refused > 0)
	if f.wait = max(2*f.wait, retryAfter); f.refused <= quickRefusals {
		f.wait = retryAfter
	}
	f.wait = min(f.wait, refusedAtMost)
	return f.wait, news
}

func isReady(n *v1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	})
}

// wanted returns the Node object that this node wants, without times.
func (r *Reporter) wanted(ctx context.Context) (*v1.Node, error) {
	disk, err := diskSize(r.RootDir)
	if err != nil {
		return nil, err
	}
	capacity, allocatable := resources(r.Machine, disk, r.MaxPods, r.Reserved)
	r.mu.Lock()
	r.allocatable = allocatable
	r.mu.Unlock()
	conditions, faults := r.conditions(ctx)
	if r.Found != nil && ctx.Err() == nil {
		r.Found(faults)
	}
	info := r.Machine.Info
	info.KubeletVersion = r.Version
	info.ContainerRuntimeVersion = "containerd://Unknown"
	if v, err := r.Runtime.Version(ctx); err == nil {
		info.ContainerRuntimeVersion = v.RuntimeName + "://" + v.RuntimeVersion
	}
	labels := map[string]string{
		v1.LabelHostname:          r.Hostname,
		v1.LabelArchStable:        info.Architecture,
		v1.LabelOSStable:          info.OperatingSystem,
		"beta.kubernetes.io/arch": info.Architecture,
		"beta.kubernetes.io/os":   info.OperatingSystem,
	}
	maps.Copy(labels, r.Labels)
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: r.Name, Labels: labels},
		Spec:       v1.NodeSpec{ProviderID: r.ProviderID},
		Status: v1.NodeStatus{
			Capacity: capacity, Allocatable: allocatable, NodeInfo: info,
			Conditions:      conditions,
			DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: r.Port}},
			Images:          r.images(ctx),
			VolumesInUse:    r.inUse(),

			DeclaredFeatures: declaredFeatures(),
		},
	}
	if r.ExternalCloud && len(r.IPs) > 0 {
		node.Annotations = map[string]string{providedIP: strings.Join(r.IPs, ",")}
	}
	for _, ip := range r.IPs {
		node.Status.Addresses = append(node.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	for _, ip := range r.ExternalIPs {
		node.Status.Addresses = append(node.Status.Addresses, v1.NodeAddress{Type: v1.NodeExternalIP, Address: ip})
	}
	node.Status.Addresses = append(node.Status.Addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: r.Hostname})
	return node, nil
}

func (r *Reporter) inUse() []v1.UniqueVolumeName {
	if r.InUse != nil {
		if names, known := r.InUse(); known {
			return names
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.observed == nil {
		return nil
	}
	return r.observed.Status.VolumesInUse
}

// images returns the largest images, for the scheduler's choice by images.
func (r *Reporter) images(ctx context.Context) []v1.ContainerImage {
	list, err := r.Images.ListImages(ctx)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.observed != nil {
			return r.observed.Status.Images // a runtime that is away has not lost them
		}
		return nil
	}
	slices.SortFunc(list, func(a, b *runtimeapi.Image) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Id, b.Id))
	})
	var told []v1.ContainerImage
	for _, image := range list {
		names := append(slices.Sorted(slices.Values(image.RepoDigests)),
			slices.Sorted(slices.Values(image.RepoTags))...)
		if len(names) > 0 && len(told) < maxImagesTold {
			told = append(told, v1.ContainerImage{Names: names, SizeBytes: int64(image.Size)})
		}
	}
	return told
}

// same compares two checks of this node.
func same(a, b *v1.Node) bool {
	return reflect.DeepEqual(a.Status.Conditions, b.Status.Conditions) && sameRest(&a.Status, &b.Status)
}

func sameRest(a, b *v1.NodeStatus) bool {
	return equalJSON(a.Capacity, b.Capacity) && equalJSON(a.Allocatable, b.Allocatable) &&
		reflect.DeepEqual(a.Addresses, b.Addresses) && a.NodeInfo == b.NodeInfo &&
		a.DaemonEndpoints == b.DaemonEndpoints && equalJSON(a.Images, b.Images) &&
		slices.Equal(a.VolumesInUse, b.VolumesInUse) && slices.Equal(a.DeclaredFeatures, b.DeclaredFeatures)
}

// withOthers adds to a status the parts that other writers have put into the Node object. Those are
// resources, such as extended resources without a device plugin, all of which are allocatable; and
// in a cloud the addresses, once there are some.
func (r *Reporter) withOthers(own *v1.NodeStatus, current *v1.Node) *v1.NodeStatus {
	status := own.DeepCopy()
	if r.ExternalCloud && len(current.Status.Addresses) > 0 {
		status.Addresses = current.Status.Addresses
	}
	for name, quantity := range current.Status.Capacity {
		if _, managed := own.Capacity[name]; !managed {
			status.Capacity[name], status.Allocatable[name] = quantity, quantity
		}
	}
	return status
}

func equalJSON(a, b any) bool {
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errA == nil && errB == nil && string(x) == string(y)
}

// differs reports whether the API server's object of this node differs from wanted.
func (r *Reporter) differs(wanted *v1.Node) bool {
	r.mu.Lock()
	current := r.observed
	r.mu.Unlock()
	return current == nil || len(metaPatch(current, wanted)) > 0 ||
		!sameConditions(wanted.Status.Conditions, current.Status.Conditions) ||
		!sameRest(&current.Status, r.withOthers(&wanted.Status, current))
}

// doubted reports whether this node has the taint of an unreachable node.
func (r *Reporter) doubted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.observed != nil && slices.ContainsFunc(r.observed.Spec.Taints, func(t v1.Taint) bool {
		return t.Key == v1.TaintNodeUnreachable
	})
}

// write makes the API server's object agree with wanted. With repeat it writes new times though
// nothing else changes.
func (r *Reporter) write(ctx context.Context, wanted *v1.Node, repeat bool) error {
	r.mu.Lock()
	current := r.observed
	r.mu.Unlock()
	var err error
	if current == nil {
		if current, err = r.register(ctx, wanted); err != nil {
			return err
		}
	}
	if current, err = r.writeMeta(ctx, current, wanted); err != nil {
		return err
	}
	return r.writeStatus(ctx, current, wanted, repeat)
}

// register returns the Node object, making it when there is none.
func (r *Reporter) register(ctx context.Context, wanted *v1.Node) (*v1.Node, error) {
	node := wanted.DeepCopy()
	node.Spec.Taints = r.Taints
	if r.ExternalCloud {
		node.Spec.Taints = append(slices.Clone(r.Taints),
			v1.Taint{Key: taintUninitialized, Value: "true", Effect: v1.TaintEffectNoSchedule})
	}
	stamp(node.Status.Conditions, nil, r.Now())
	made, err := r.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err == nil {
		r.Logger.Info("registered this node", "node", r.Name)
		r.learn(made)
		return made, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("register node %s: %w", r.Name, err)
	}
	have, err := r.Client.CoreV1().Nodes().Get(ctx, r.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", r.Name, err)
	}
	r.learn(have)
	return have, nil
}

// learn keeps the object of an answer of the API server.
func (r *Reporter) learn(node *v1.Node) {
	r.mu.Lock()
	r.observed = node
	r.mu.Unlock()
}

// Forget drops the known Node object after its deletion. It will be made again.
func (r *Reporter) Forget() {
	r.Observe(nil)
}

// metaPatch is a patch that corrects the machine's labels. Other labels, and taints, stay.
func metaPatch(current, wanted *v1.Node) map[string]any {
	metadata := map[string]any{}
	for field, of := range map[string][2]map[string]string{
		"labels": {wanted.Labels, current.Labels}, "annotations": {wanted.Annotations, current.Annotations},
	} {
		differing := map[string]string{}
		for key, value := range of[0] {
			if have, ok := of[1][key]; !ok || have != value {
				differing[key] = value
			}
		}
		if len(differing) > 0 {
			metadata[field] = differing
		}
	}
	patch := map[string]any{}
	if len(metadata) > 0 {
		patch["metadata"] = metadata
	}
	if wanted.Spec.ProviderID != "" && current.Spec.ProviderID == "" {
		patch["spec"] = map[string]any{"providerID": wanted.Spec.ProviderID}
	}
	return patch
}

func (r *Reporter) writeMeta(ctx context.Context, current, wanted *v1.Node) (*v1.Node, error) {
	patch := metaPatch(current, wanted)
	if len(patch) == 0 {
		return current, nil
	}
	raw, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	node, err := r.Client.CoreV1().Nodes().Patch(ctx, r.Name, types.StrategicMergePatchType, raw, metav1.PatchOptions{})
	if err != nil {
		return nil, r.missing(fmt.Errorf("label node %s: %w", r.Name, err))
	}
	r.learn(node)
	return node, nil
}

func (r *Reporter) writeStatus(ctx context.Context, current, wanted *v1.Node, repeat bool) error {
	after := r.withOthers(&wanted.Status, current)
	conditions := after.Conditions
	stamp(conditions, current.Status.Conditions, r.Now())
	if !repeat && sameConditions(conditions, current.Status.Conditions) && sameRest(&current.Status, after) {
		r.compare(current)
		return nil
	}
	for _, c := range current.Status.Conditions {
		if !slices.ContainsFunc(conditions, func(own v1.NodeCondition) bool { return own.Type == c.Type }) {
			after.Conditions = append(after.Conditions, c)
		}
	}
	after.VolumesAttached = current.Status.VolumesAttached
	patch, err := statusPatch(current.Status, *after)
	if err != nil {
		return fmt.Errorf("compare statuses of node %s: %w", r.Name, err)
	}
	node, err := r.Client.CoreV1().Nodes().Patch(ctx, r.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return r.missing(fmt.Errorf("write the status of node %s: %w", r.Name, err))
	}
	r.learn(node)
	r.compare(current)
	return nil
}

// statusPatch returns the strategic merge patch from one status to another. Addresses are replaced
// as a whole: their list merges by type, which mixes up two addresses of one type, as those of a
// node of two families are.
func statusPatch(before, after v1.NodeStatus) ([]byte, error) {
	addresses := after.Addresses
	replace := !slices.Equal(before.Addresses, addresses)
	before.Addresses, after.Addresses = nil, nil
	old, err := json.Marshal(&v1.Node{Status: before})
	if err != nil {
		return nil, err
	}
	fresh, err := json.Marshal(&v1.Node{Status: after})
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, fresh, v1.Node{})
	if err != nil || !replace {
		return patch, err
	}
	var whole map[string]any
	if err := json.Unmarshal(patch, &whole); err != nil {
		return nil, err
	}
	list := []any{map[string]string{"$patch": "replace"}}
	for _, a := range addresses {
		list = append(list, a)
	}
	status, ok := whole["status"].(map[string]any)
	if !ok {
		status = map[string]any{}
		whole["status"] = status
	}
	status["addresses"] = list
	return json.Marshal(whole)
}

// compare reports other internal addresses than the Node object had when this process began. Later
// changes come from other writers. In a cloud all are those of another writer.
func (r *Reporter) compare(found *v1.Node) {
	if r.compared {
		return
	}
	r.compared = true
	before := internal(found.Status.Addresses)
	if r.Moved != nil && len(before) > 0 && !slices.Equal(before, r.IPs) && !r.ExternalCloud {
		r.Moved(before, r.IPs)
	}
}

// internal are the addresses by which other nodes reach a node.
func internal(addresses []v1.NodeAddress) []string {
	var all []string
	for _, a := range addresses {
		if a.Type == v1.NodeInternalIP {
			all = append(all, a.Address)
		}
	}
	return all
}

// missing makes the next try register anew when the Node object is gone.
func (r *Reporter) missing(err error) error {
	if apierrors.IsNotFound(err) {
		r.learn(nil)
	}
	return err
}

// sameConditions reports whether the API server has the node's own conditions,
// whatever their times.
func sameConditions(own, theirs []v1.NodeCondition) bool {
	for _, c := range own {
		if !slices.ContainsFunc(theirs, func(t v1.NodeCondition) bool {
			return t.Type == c.Type && t.Status == c.Status && t.Reason == c.Reason && t.Message == c.Message
		}) {
			return false
		}
	}
	return true
}
