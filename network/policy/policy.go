// Package policy enforces NetworkPolicies (networking.k8s.io/v1) on the pods of one node. It owns
// the nftables tables "barque-policy", one of each IP family, of the process's network namespace
// with all of their contents.
//
//	NetworkPolicies, Namespaces, Pods ──state──▶ Rules ──diff──▶ Delta ──table──▶ kernel
//
// state and diff are pure; table has no choices left to make. Invariants:
//
//   - A pod of the node that the table does not know is closed. The kubelet starts no container
//     before Attach has returned, so that the first packet of a pod meets its policies.
//   - A change is one transaction in each family, and touches only changed elements.
//   - Nothing is removed when the agent stops: pods stay as restricted as they are.
//   - The pods of other nodes are watched from when a policy of this node first refers to pods.
//
// docs/network-policy.md has the guarantees for users.
package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/network/nft"
	"github.com/barque/barque/network/pace"
)

// Config is an Agent's configuration.
type Config struct {
	NodeName   string
	Policies   networkinginformers.NetworkPolicyInformer
	Namespaces coreinformers.NamespaceInformer
	// Pods holds this node's pods; it may hold others.
	Pods coreinformers.PodInformer
	// Peers holds the pods of all nodes. Only the Agent starts it, when it needs it.
	Peers cache.SharedIndexInformer
	DNS   DNS
	// Families are those of the pods.
	Families []nft.Family
	// Writer is the writer of the node's tables.
	Writer *nft.Writer
	Logger *slog.Logger
}

// kernel is the agent's interface of the kernel; tables are the real ones.
type kernel interface {
	replace(rules Rules, own []netip.Prefix) error
	change(Delta) error
}

// Agent keeps the kernel's rules in step with the cluster's policies.
type Agent struct {
	config  Config
	kernel  kernel
	trigger pace.Trigger
	lost    atomic.Bool // another program has changed the table

	readyOnce sync.Once
	ready     chan struct{}

	mu       sync.Mutex
	pending  pending
	attached map[string]attachment // by namespace/name
	since    uint64
	waiting  []chan struct{} // closed when all before is in the kernel
	own      []netip.Prefix  // the node's shares of the pod network

	// Only sync, which never runs concurrently, touches these.
	state   *state
	applied Rules          // the kernel's state, if known
	within  []netip.Prefix // the shares that the kernel's tables are for
	known   bool
	open    touched // what differs from applied
	peers   bool    // the informer of peers is started
}

// pending holds the keys of objects that have changed.
type pending struct{ pods, namespaces, policies map[string]struct{} }

func noneDue() pending {
	return pending{map[string]struct{}{}, map[string]struct{}{}, map[string]struct{}{}}
}

// attachment is a pod whose addresses the kubelet knows.
type attachment struct {
	pod   *corev1.Pod
	addrs []netip.Addr
	since uint64
}

var syncPace = pace.Pace{
	MinInterval: 20 * time.Millisecond,
	RetryMin:    500 * time.Millisecond,
	RetryMax:    30 * time.Second,
}

// New prepares an agent and asks the informers to be started.
func New(config Config) *Agent {
	if config.Writer == nil {
		config.Writer = new(nft.Writer)
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	a := &Agent{
		config: config, kernel: tables{writer: config.Writer, families: config.Families, dns: config.DNS.Local.Addr()},
		trigger: pace.NewTrigger(),
		ready:   make(chan struct{}), pending: noneDue(), attached: map[string]attachment{},
		state: newState(config.DNS), applied: emptyRules(), open: nothing(),
	}
	_ = a.informers() // asking for them makes their factory start them
	return a
}

func (a *Agent) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{a.config.Policies.Informer(), a.config.Namespaces.Informer(),
		a.config.Pods.Informer()}
}

// Ready is closed when the kernel has the rules for the first time.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

// Restore makes the agent write its table again: another program has changed it.
func (a *Agent) Restore() {
	a.lost.Store(true)
	a.trigger.Fire()
}

// Share sets the node's shares of the pod network. Until they are known there are no pods.
func (a *Agent) Share(own []netip.Prefix) {
	a.mu.Lock()
	changed := !slices.Equal(a.own, own)
	a.own = own
	a.mu.Unlock()
	if changed {
		a.trigger.Fire()
	}
}

// attachLimit is how long a pod waits for its policies before the kubelet reports that they are
// missing.
const attachLimit = 10 * time.Second

// Attach returns when the policies of a pod with addresses are in the kernel. It fails after a
// time: the API server is out of reach, or the kernel refuses. Pods of the node's own network do
// not need it.
func (a *Agent) Attach(ctx context.Context, pod *corev1.Pod, addrs []string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, attachLimit,
		errors.New("they are not in the kernel yet; the log says why"))
	defer cancel()
	done := make(chan struct{})
	key := keyOf(pod)
	a.mu.Lock()
	a.since++
	a.attached[key] = attachment{pod: pod, addrs: parseAddrs(addrs), since: a.since}
	a.pending.pods[key] = struct{}{}
	a.waiting = append(a.waiting, done)
	a.mu.Unlock()
	a.trigger.Fire()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("network policies of pod %s: %w", key, context.Cause(ctx))
	}
}

// Detach drops Attach's data of the pod.
func (a *Agent) Detach(pod *corev1.Pod) {
	key := keyOf(pod)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.attached[key].is(pod.UID) {
		delete(a.attached, key)
		a.pending.pods[key] = struct{}{}
		a.trigger.Fire()
	}
}

func (a attachment) is(uid types.UID) bool { return a.pod != nil && a.pod.UID == uid }

func keyOf(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// Run keeps the rules in step until ctx ends. The rules stay.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	var synced []cache.InformerSynced
	kinds := []func(*pending) map[string]struct{}{
		func(p *pending) map[string]struct{} { return p.policies },
		func(p *pending) map[string]struct{} { return p.namespaces },
		func(p *pending) map[string]struct{} { return p.pods },
	}
	for i, informer := range a.informers() {
		registration, err := informer.AddEventHandler(a.note(kinds[i]))
		if err != nil {
			return pace.EndOr(ctx, fmt.Errorf("network policies: watch: %w", err))
		}
		defer func() { _ = informer.RemoveEventHandler(registration) }() // fails only for another informer's
		synced = append(synced, registration.HasSynced)
	}
	peers, err := a.config.Peers.AddEventHandler(a.note(kinds[2]))
	if err != nil {
		return pace.EndOr(ctx, fmt.Errorf("network policies: watch all pods: %w", err))
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil // ctx ended
	}
	startPeers := func() {
		beside.Go(func() { a.config.Peers.RunWithContext(ctx) }) // ends with ctx
		beside.Go(func() {                                       // ends with ctx, or when they are there
			if cache.WaitForCacheSync(ctx.Done(), peers.HasSynced) {
				a.trigger.Fire()
			}
		})
	}
	pace.Run(ctx, syncPace, a.trigger, func(context.Context) error { return a.sync(startPeers, peers.HasSynced) },
		func(err error) {
			a.config.Logger.Error("network policies: cannot bring the rules up to date, trying again", "err", err)
		})
	return nil
}

// note remembers the keys of changed objects and fires the trigger.
func (a *Agent) note(kind func(*pending) map[string]struct{}) cache.ResourceEventHandler {
	changed := func(object any) {
		key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
		if err != nil {
			return // informers hand out objects only
		}
		a.mu.Lock()
		kind(&a.pending)[key] = struct{}{}
		a.mu.Unlock()
		a.trigger.Fire()
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		UpdateFunc: func(_, object any) { changed(object) },
		DeleteFunc: changed,
	}
}

// sync brings the kernel to the cluster's state. Once all peers were noted, that includes them.
func (a *Agent) sync(startPeers func(), peersNoted cache.InformerSynced) error {
	noted := peersNoted() // before pending changes are taken: then those include the last of them
	a.mu.Lock()
	due, waiting, own := a.pending, a.waiting, a.own
	a.pending, a.waiting = noneDue(), nil
	a.mu.Unlock()
	done := false
	defer func() {
		if !done {
			a.mu.Lock()
			a.waiting = append(waiting, a.waiting...)
			a.mu.Unlock()
		}
	}()
	if err := a.learn(due); err != nil {
		return err
	}
	a.open.merge(a.state.take())
	if len(a.state.rules.Sets) > 0 && !a.peers {
		a.peers = true
		startPeers()
	}
	if len(own) == 0 || a.peers && !noted {
		return nil // the trigger fires when they are there
	}
	if a.lost.Swap(false) && a.known {
		a.config.Logger.Warn("network policies: the nftables table was changed by another program, writing it again")
		a.known = false
	}
	if err := a.write(own); err != nil {
		return err
	}
	done = true
	for _, c := range waiting {
		close(c)
	}
	a.readyOnce.Do(func() { close(a.ready) })
	return nil
}

// write makes the kernel have the state's rules.
func (a *Agent) write(own []netip.Prefix) error {
	next := a.state.rules
	if !a.known || !slices.Equal(a.within, own) {
		a.known = false
		if err := a.kernel.replace(next, own); err != nil {
			return err
		}
		a.applied, a.within = emptyRules(), own
		a.applied.take(next, everything(next))
	} else {
		delta := diff(a.applied, next, a.open)
		if !delta.Empty() {
			a.known = false // until a success, the kernel's state is unknown
			if err := a.kernel.change(delta); err != nil {
				return err
			}
		}
		a.applied.take(next, a.open)
	}
	a.open, a.known = nothing(), true
	return nil
}

// learn gives the state the objects that have changed.
func (a *Agent) learn(due pending) error {
	var failed error
	for name := range due.namespaces {
		object, exists, err := a.config.Namespaces.Informer().GetStore().GetByKey(name)
		failed = errors.Join(failed, err)
		if namespace, ok := object.(*corev1.Namespace); ok && exists {
			a.state.setNamespace(name, copyLabels(namespace.Labels))
		} else {
			a.state.setNamespace(name, nil)
		}
	}
	for key := range due.pods {
		pod, err := a.pod(key)
		failed = errors.Join(failed, err)
		a.state.setPod(key, pod)
	}
	for key := range due.policies {
		namespace, name, err := cache.SplitMetaNamespaceKey(key)
		failed = errors.Join(failed, err)
		policy, err := a.config.Policies.Lister().NetworkPolicies(namespace).Get(name)
		if err != nil {
			policy = nil // it is gone: an informer's store has no other error
		}
		a.state.setPolicy(key, policy)
	}
	return failed
}

// pod returns the data of a pod; nil if it has no address of its own.
func (a *Agent) pod(key string) (*Pod, error) {
	object, exists, err := a.config.Pods.Informer().GetStore().GetByKey(key)
	if err == nil && !exists {
		object, exists, err = a.config.Peers.GetStore().GetByKey(key)
	}
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	attached, isAttached := a.attached[key]
	a.mu.Unlock()
	pod, ok := object.(*corev1.Pod)
	if ok = ok && exists; isAttached && (!ok || pod.UID != attached.pod.UID) {
		pod, ok = attached.pod, true // its containers may still run, though another pod has its name
	}
	if !ok || pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil, nil
	}
	p := podOf(pod, a.config.NodeName)
	if isAttached {
		p.Addrs, p.Since = attached.addrs, attached.since
	}
	if len(p.Addrs) == 0 {
		return nil, nil
	}
	return p, nil
}

// podOf reads an object.
func podOf(pod *corev1.Pod, node string) *Pod {
	p := &Pod{Namespace: pod.Namespace, Labels: copyLabels(pod.Labels), Local: pod.Spec.NodeName == node}
	var ips []string
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	if len(ips) == 0 && pod.Status.PodIP != "" {
		ips = []string{pod.Status.PodIP}
	}
	p.Addrs = parseAddrs(ips)
	name := func(c *corev1.Container) {
		for _, port := range c.Ports {
			if port.Name != "" {
				protocol := port.Protocol
				if protocol == "" {
					protocol = corev1.ProtocolTCP
				}
				p.Ports = append(p.Ports,
					NamedPort{Name: port.Name, Protocol: protocol, Number: uint16(port.ContainerPort)})
			}
		}
	}
	for i := range pod.Spec.Containers {
		name(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil &&
			*c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			name(c)
		}
	}
	return p
}

func copyLabels(from map[string]string) map[string]string {
	to := make(map[string]string, len(from))
	for key, value := range from {
		to[key] = value
	}
	return to
}

// parseAddrs reads addresses.
func parseAddrs(texts []string) []netip.Addr {
	var addrs []netip.Addr
	for _, text := range texts {
		if addr, err := netip.ParseAddr(text); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

func (t touched) merge(other touched) {
	for addr := range other.pods {
		t.pods[addr] = struct{}{}
	}
	for name := range other.profiles {
		t.profiles[name] = struct{}{}
	}
	for name := range other.policies {
		t.policies[name] = struct{}{}
	}
	for name, elements := range other.sets {
		t.set(name)
		for element := range elements {
			t.element(name, element)
		}
	}
}
