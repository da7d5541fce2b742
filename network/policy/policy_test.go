package policy

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

// fakeKernel has rules as the real one would, and fails on demand.
type fakeKernel struct {
	mu    sync.Mutex
	calls []string
	rules Rules
	fail  error
}

func (k *fakeKernel) replace(rules Rules, _ []netip.Prefix) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls = append(k.calls, "replace")
	if k.fail == nil {
		k.rules = emptyRules()
		k.rules.take(rules, everything(rules))
	}
	return k.fail
}

func (k *fakeKernel) change(d Delta) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls = append(k.calls, "change")
	if k.fail == nil {
		for addr, c := range d.SetPods {
			if delete(k.rules.Pods, addr); c.to != nil {
				k.rules.Pods[addr] = *c.to
			}
		}
	}
	return k.fail
}

// took returns what was asked of the kernel since it was last called.
func (k *fakeKernel) took() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	calls := k.calls
	k.calls = nil
	return calls
}

func (k *fakeKernel) failing(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = err
}

// of returns a pod's rules, and whether it is known.
func (k *fakeKernel) of(ip string) (Isolation, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	isolation, known := k.rules.Pods[netip.MustParseAddr(ip)]
	return isolation, known
}

// TestAgent follows an agent through its life, in virtual time.
func TestAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const here = "node-1"
		pod := func(name, node, ip string, phase corev1.PodPhase) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, UID: "u"},
				Spec:   corev1.PodSpec{NodeName: node},
				Status: corev1.PodStatus{Phase: phase, PodIP: ip}}
		}
		client := fake.NewClientset(
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
			pod("running", here, "10.42.1.1", corev1.PodRunning), pod("ended", here, "10.42.1.2", corev1.PodSucceeded),
			pod("elsewhere", "node-2", "10.42.2.1", corev1.PodRunning),
		)
		factory := informers.NewSharedInformerFactory(client, 0)
		peers := coreinformers.NewPodInformer(client, metav1.NamespaceAll, 0, cache.Indexers{})
		a := New(Config{NodeName: here, Policies: factory.Networking().V1().NetworkPolicies(),
			Namespaces: factory.Core().V1().Namespaces(), Pods: factory.Core().V1().Pods(), Peers: peers})
		kernel := &fakeKernel{}
		a.kernel = kernel
		ctx, cancel := context.WithCancel(t.Context())
		factory.Start(ctx.Done())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		pass := func(d time.Duration) {
			<-time.After(d) // virtual
			synctest.Wait()
		}
		expect := func(what string, want ...string) {
			t.Helper()
			pass(time.Second)
			if got := kernel.took(); !slices.Equal(got, want) {
				t.Errorf("%s: the kernel was asked to %v, want %v", what, got, want)
			}
		}
		expect("without a share of the pod network")
		a.Share([]netip.Prefix{netip.MustParsePrefix("10.42.1.0/24")})
		expect("with one", "replace")
		<-a.Ready()
		for ip, want := range map[string]bool{"10.42.1.1": true, "10.42.1.2": false, "10.42.2.1": false} {
			if isolation, known := kernel.of(ip); known != want || isolation != (Isolation{}) {
				t.Errorf("%s: known %v: %+v", ip, known, isolation)
			}
		}
		if peers.HasSynced() {
			t.Error("the pods of all nodes are asked for without a policy that refers to any")
		}

		// A policy that refers to pods: the kernel hears of it when its peers are known.
		policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p"},
			Spec: networkingv1.NetworkPolicySpec{
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
				Ingress: []networkingv1.NetworkPolicyIngressRule{
					{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}},
			}}
		if _, err := client.NetworkingV1().NetworkPolicies("x").Create(ctx, policy,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("a policy", "change")
		if isolation, _ := kernel.of("10.42.1.1"); isolation.Ingress == "" || isolation.Egress != "" {
			t.Errorf("with a policy: %+v", isolation)
		}
		if !peers.HasSynced() {
			t.Error("the pods of all nodes are not asked for")
		}

		// The kubelet waits until the kernel has a pod.
		created := pod("new", here, "", corev1.PodPending)
		if err := a.Attach(ctx, created, []string{"10.42.1.9"}); err != nil {
			t.Fatal(err)
		}
		if isolation, known := kernel.of("10.42.1.9"); !known || isolation.Ingress == "" {
			t.Errorf("after Attach: known %v: %+v", known, isolation)
		}
		expect("Attach", "change")
		a.Detach(pod("new", here, "", corev1.PodFailed))
		expect("Detach", "change")
		if _, known := kernel.of("10.42.1.9"); known {
			t.Error("a pod that has ended is known")
		}

		kernel.failing(errors.New("no"))
		if err := a.Attach(ctx, created, []string{"10.42.1.9"}); err == nil {
			t.Error("Attach returns though the kernel refuses")
		}
		kernel.failing(nil)
		pass(time.Minute)
		if calls := kernel.took(); calls[0] != "change" || slices.Contains(calls[1:], "change") {
			t.Errorf("after a failure the whole is to be written: %v", calls)
		}
		if _, known := kernel.of("10.42.1.9"); !known {
			t.Error("what the kernel refused once it never got")
		}
		a.Restore()
		expect("somebody else has changed the table", "replace")
		a.Share([]netip.Prefix{netip.MustParsePrefix("10.42.7.0/24")})
		expect("another share", "replace")
		expect("nothing")

		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	})
}

// latePeers has its pods long before it hands them on.
type latePeers struct {
	cache.SharedIndexInformer
	release chan struct{}
}

func (p latePeers) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return p.SharedIndexInformer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, first bool) {
			<-p.release
			h.OnAdd(object, first)
		},
		UpdateFunc: h.OnUpdate, DeleteFunc: h.OnDelete,
	})
}

// TestFirstTableHasAllPeers: pods that may be spoken with are not cut off after a restart because
// not all of them were looked at.
func TestFirstTableHasAllPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := func(name, node, ip string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, UID: "u"},
				Spec:   corev1.PodSpec{NodeName: node},
				Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip}}
		}
		here := pod("here", "node-1", "10.42.1.1")
		client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, here,
			pod("elsewhere", "node-2", "10.42.2.1"),
			&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p"},
				Spec: networkingv1.NetworkPolicySpec{
					PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
					Ingress: []networkingv1.NetworkPolicyIngressRule{
						{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}},
				}})
		factory := informers.NewSharedInformerFactory(client, 0)
		own := informers.NewSharedInformerFactory(fake.NewClientset(here), 0)
		peers := latePeers{coreinformers.NewPodInformer(client, metav1.NamespaceAll, 0, cache.Indexers{}),
			make(chan struct{})}
		a := New(Config{NodeName: "node-1", Policies: factory.Networking().V1().NetworkPolicies(),
			Namespaces: factory.Core().V1().Namespaces(), Pods: own.Core().V1().Pods(), Peers: peers})
		kernel := &fakeKernel{}
		a.kernel = kernel
		ctx, cancel := context.WithCancel(t.Context())
		factory.Start(ctx.Done())
		own.Start(ctx.Done())
		a.Share([]netip.Prefix{netip.MustParsePrefix("10.42.1.0/24")})
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		<-time.After(time.Minute) // virtual
		synctest.Wait()
		if calls := kernel.took(); !peers.HasSynced() || len(calls) > 0 {
			t.Errorf("before all peers are looked at: the informer has them %v, the kernel was asked to %v",
				peers.HasSynced(), calls)
		}
		close(peers.release)
		<-time.After(time.Minute)
		synctest.Wait()
		if calls := kernel.took(); !slices.Equal(calls, []string{"replace"}) {
			t.Errorf("then the kernel was asked to %v", calls)
		}
		kernel.mu.Lock()
		found := false
		for _, set := range kernel.rules.Sets {
			_, has := set[netip.AddrPortFrom(netip.MustParseAddr("10.42.2.1"), 0)]
			found = found || has
		}
		if !found {
			t.Errorf("the first table lacks the peer: %v", kernel.rules.Sets)
		}
		kernel.mu.Unlock()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
		own.Shutdown()
	})
}
