package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// TestRulesSayWhatPoliciesSay compares, in random clusters that change, the rules with the model:
// for every pair of pods, addresses that are nobody's, and cluster DNS. What is learnt step by step
// is what is learnt at once, and what the deltas lead to.
func TestRulesSayWhatPoliciesSay(t *testing.T) {
	seeds := uint64(3000)
	if testing.Short() {
		seeds = 400
	}
	allowed, denied := 0, 0
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		s, applied := newState(testDNS), emptyRules()
		var w *world
		for range 3 {
			w = randomWorld(r)
			w.turn(s, r)
			touched := s.take()
			applied.take(s.rules, touched)
		}
		fresh := newState(testDNS)
		w.turn(fresh, r)
		if !reflect.DeepEqual(s.rules, fresh.rules) {
			t.Fatalf("seed %d: step by step %+v\nat once %+v", seed, s.rules, fresh.rules)
		}
		if !reflect.DeepEqual(applied, fresh.rules) {
			t.Fatalf("seed %d: the kernel has %+v\nwanted %+v", seed, applied, fresh.rules)
		}
		addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1"),
			testDNS.Local.Addr()}
		for _, pod := range w.pods {
			addrs = append(addrs, pod.Addrs...)
		}
		for _, client := range addrs {
			for _, server := range addrs {
				for _, protocol := range protocols {
					for _, port := range []uint16{53, 80, 81, 443, testDNS.Local.Port()} {
						f := flow{client, server, protocol, port}
						if client == testDNS.Local.Addr() ||
							(server == testDNS.Local.Addr()) != (port == testDNS.Local.Port()) {
							continue // DNS asks nobody, and answers at its own port only
						}
						want := w.allows(f)
						if got := s.rules.allows(f); got != want {
							t.Fatalf("seed %d: %+v: allowed %v, want %v\nworld %s", seed, f, got, want, w)
						}
						if want {
							allowed++
						} else {
							denied++
						}
					}
				}
			}
		}
	}
	if allowed < denied/20 || denied < allowed/20 {
		t.Errorf("%d flows allowed, %d denied: the worlds are of one kind", allowed, denied)
	}
}

func (w *world) String() string {
	text := fmt.Sprintf("namespaces %v", w.namespaces)
	for key, pod := range w.pods {
		text += fmt.Sprintf("\npod %s %+v", key, *pod)
	}
	for key, policy := range w.policies {
		text += fmt.Sprintf("\npolicy %s %+v", key, policy.Spec)
	}
	return text
}

// TestOnePodTouchesItsElementsOnly: what a change costs in the kernel.
func TestOnePodTouchesItsElementsOnly(t *testing.T) {
	s := newState(DNS{})
	s.setNamespace("x", labels.Set{})
	s.setPolicy("x/p", &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p"},
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}},
				Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromString("web"))}},
			}},
		}})
	pod := func(last byte, local bool) *Pod {
		return &Pod{Namespace: "x", Local: local, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 42, 0, last})},
			Ports: []NamedPort{{Name: "web", Protocol: corev1.ProtocolTCP, Number: 80}}}
	}
	if s.setPod("x/0", pod(100, false)); len(s.rules.Sets)+len(s.rules.Policies) != 0 {
		t.Errorf("a policy that selects no pod of the node is in the rules: %+v", s.rules)
	}
	for i := range byte(50) {
		s.setPod(fmt.Sprintf("x/l%d", i), pod(i, true))
	}
	before := emptyRules()
	before.take(s.rules, everything(s.rules))
	s.take()
	for _, local := range []bool{true, false} {
		s.setPod("x/new", pod(200, local))
		delta := diff(before, s.rules, s.take())
		wantPods := 0
		if local {
			wantPods = 1
		}
		elements := 0
		for _, list := range delta.AddElements {
			elements += len(list)
		}
		if len(delta.SetPods) != wantPods || elements != 2 ||
			len(delta.DelElements)+len(delta.SetPolicies)+len(delta.AddProfiles)+len(delta.AddSets) != 0 {
			t.Errorf("local %v: %+v", local, delta)
		}
		s.setPod("x/new", nil)
		if delta := diff(before, s.rules, s.take()); !delta.Empty() {
			t.Errorf("there and away again: %+v", delta)
		}
	}
}

// TestTwoPodsAtOneAddress: an address belongs to the pod that got it last.
func TestTwoPodsAtOneAddress(t *testing.T) {
	s := newState(DNS{})
	s.setNamespace("x", labels.Set{})
	s.setPolicy("x/p", &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"closed": ""}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}}})
	addr := netip.MustParseAddr("10.42.0.5")
	ended := &Pod{Namespace: "x", Local: true, Addrs: []netip.Addr{addr}}
	next := &Pod{Namespace: "x", Labels: labels.Set{"closed": ""}, Local: true, Addrs: []netip.Addr{addr}, Since: 1}
	closed := func() bool { return s.rules.Pods[addr].Ingress != "" }
	s.setPod("x/ended", ended)
	if closed() {
		t.Error("a pod that no policy selects is closed")
	}
	s.setPod("x/next", next)
	if !closed() {
		t.Error("the new pod has the policies of the old one")
	}
	s.setPod("x/ended", nil)
	if !closed() {
		t.Error("the end of the old pod opens the new one")
	}
	s.setPod("x/next", nil)
	if _, there := s.rules.Pods[addr]; there {
		t.Error("the address of no pod is known")
	}
}
