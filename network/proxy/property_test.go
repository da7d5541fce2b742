package proxy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// randomSnapshot is a small cluster in which everything that plan looks at
// varies, and in which names, addresses and ports often collide.
func randomSnapshot(r *rand.Rand) Snapshot {
	nodes := []string{here, "node-2", "node-3"}
	pick := func(n int) int { return r.IntN(n) }
	s := Snapshot{NodeName: here}
	for i := range pick(5) {
		service := service(func(s *corev1.Service) {
			s.Name = fmt.Sprintf("s%d", i)
			s.Spec.ClusterIP = fmt.Sprintf("10.43.0.%d", pick(6))
			if pick(8) == 0 {
				s.Spec.ClusterIP = corev1.ClusterIPNone
			}
			s.Spec.Ports[0].Protocol = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}[pick(2)]
			if pick(2) == 0 {
				nodePort(s)
				s.Spec.Ports[0].NodePort = int32(30000 + pick(3))
			}
			if pick(3) == 0 {
				externalLocal(s)
			}
			if pick(3) == 0 {
				internalLocal(s)
			}
			if pick(3) == 0 {
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
					ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(int32(10 + pick(2)))}}
			}
			if pick(3) == 0 {
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("192.0.2.%d", pick(3))}}
				s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
			}
		})
		s.Services = append(s.Services, service)
		for j := range pick(3) {
			slice := slice()
			slice.Name = fmt.Sprintf("%s-%d", service.Name, j)
			slice.Labels[discoveryv1.LabelServiceName] = service.Name
			slice.Ports[0].Protocol = &service.Spec.Ports[0].Protocol
			for range pick(4) {
				n := pick(3)
				slice.Endpoints = append(slice.Endpoints,
					endpoint(fmt.Sprintf("10.42.%d.%d", n+1, pick(4)), nodes[n], state(pick(3))))
			}
			s.Slices = append(s.Slices, slice)
		}
	}
	for i := range pick(3) {
		s.Pods = append(s.Pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("p%d", i)},
			Spec: corev1.PodSpec{NodeName: nodes[pick(2)], Containers: []corev1.Container{{
				Ports: []corev1.ContainerPort{
					{ContainerPort: 8080, HostPort: int32(pick(3) * 30000), Protocol: corev1.ProtocolTCP}}}}},
			Status: corev1.PodStatus{PodIP: fmt.Sprintf("10.42.1.%d", pick(4))},
		})
	}
	return s
}

// plan is what all objects together ask for: what a book comes to, whatever has changed in which
// order.
func plan(s Snapshot) Rules {
	rules := claimed(s, s.Local)
	prune(rules)
	return rules
}

// prune removes the chains that no frontend leads to.
func prune(r Rules) {
	reached := map[string]bool{}
	for _, name := range r.Frontends {
		for name != "" && !reached[name] {
			reached[name] = true
			if cluster := r.Chains[name].Cluster; cluster != "" {
				reached[cluster] = true // such a chain leads no further
			}
			name = r.Chains[name].Next
		}
	}
	for name := range r.Chains {
		if !reached[name] {
			delete(r.Chains, name)
		}
	}
}

// TestPlanProperties: what holds for every plan.
func TestPlanProperties(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := randomSnapshot(r)
		rules := plan(s)

		used := map[string]bool{}
		for frontend, name := range rules.Frontends {
			if _, both := rules.Refused[frontend]; both {
				t.Errorf("seed %d: %v is led on and refused", seed, frontend)
			}
			used[name] = true
		}
		for name, chain := range rules.Chains {
			used[chain.Next], used[chain.Cluster] = true, true
			for _, to := range []string{chain.Next, chain.Cluster} {
				if target, there := rules.Chains[to]; to != "" &&
					(!there || len(target.Backends) == 0 && target.Next == "" && target.Cluster == "") {
					t.Errorf("seed %d: chain %s leads to %q, which leads nowhere", seed, name, to)
				}
			}
			if !slices.IsSortedFunc(chain.Backends, compareBackends) ||
				len(slices.Compact(slices.Clone(chain.Backends))) != len(chain.Backends) {
				t.Errorf("seed %d: backends of %s: %v", seed, name, chain.Backends)
			}
			if chain.Cluster != "" || name[:8] == "internal" {
				for _, backend := range chain.Backends {
					if !netip.MustParsePrefix("10.42.1.0/24").Contains(backend.Addr) {
						t.Errorf("seed %d: %s may use %v, which is on another node", seed, name, backend)
					}
				}
			}
		}
		for name := range rules.Chains {
			if !used[name] {
				t.Errorf("seed %d: nothing leads to chain %s", seed, name)
			}
		}

		// The order in which informers list objects means nothing.
		r.Shuffle(len(s.Services), func(i, j int) { s.Services[i], s.Services[j] = s.Services[j], s.Services[i] })
		r.Shuffle(len(s.Slices), func(i, j int) { s.Slices[i], s.Slices[j] = s.Slices[j], s.Slices[i] })
		if again := plan(s); !reflect.DeepEqual(rules, again) {
			t.Errorf("seed %d: another order gives another plan:\n%+v\n%+v", seed, rules, again)
		}
		if t.Failed() {
			return
		}
	}
}

// TestDiffProperties: a delta applied, as strictly as the kernel does it, to the
// one gives the other; and it touches nothing that stays.
func TestDiffProperties(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 2))
		now, next := plan(randomSnapshot(r)), plan(randomSnapshot(r))
		if seed%10 == 0 {
			now = emptyRules()
		}
		model := newModel(t, now)
		model.apply(diff(now, next))
		if !reflect.DeepEqual(model.rules, next) {
			t.Fatalf("seed %d: got\n%+v\nwant\n%+v", seed, model.rules, next)
		}
		for name, chain := range next.Chains {
			if model.affinity[name] != (chain.Affinity != 0) {
				t.Fatalf("seed %d: affinity map of %s: %v", seed, name, model.affinity[name])
			}
		}
		if len(model.affinity) > len(next.Chains) {
			t.Fatalf("seed %d: affinity maps are left: %v", seed, model.affinity)
		}
		if delta := diff(next, next); !delta.Empty() {
			t.Fatalf("seed %d: no change gives %+v", seed, delta)
		}
	}
}

// model takes a delta in the order in which table.apply does, and complains
// where the kernel would.
type model struct {
	t        *testing.T
	rules    Rules
	affinity map[string]bool
}

func newModel(t *testing.T, rules Rules) *model {
	m := &model{t: t, affinity: map[string]bool{}, rules: Rules{
		Frontends: maps.Clone(rules.Frontends), Refused: maps.Clone(rules.Refused),
		Chains: maps.Clone(rules.Chains), Hairpins: maps.Clone(rules.Hairpins),
	}}
	for name, chain := range rules.Chains {
		if chain.Affinity != 0 {
			m.affinity[name] = true
		}
	}
	return m
}

func (m *model) apply(d Delta) {
	m.t.Helper()
	for name := range d.AddChains {
		add(m.t, m.rules.Chains, name, Chain{})
	}
	for name := range d.SetChains {
		set(m.t, m.rules.Chains, name, Chain{})
	}
	for _, frontend := range d.DelFrontends {
		del(m.t, m.rules.Frontends, frontend)
	}
	for _, frontend := range d.DelRefused {
		del(m.t, m.rules.Refused, frontend)
	}
	for _, addr := range d.DelHairpins {
		del(m.t, m.rules.Hairpins, addr)
	}
	for frontend, name := range d.AddFrontends {
		add(m.t, m.rules.Frontends, frontend, name)
	}
	for frontend, refusal := range d.AddRefused {
		add(m.t, m.rules.Refused, frontend, refusal)
	}
	for _, addr := range d.AddHairpins {
		add(m.t, m.rules.Hairpins, addr, struct{}{})
	}
	for _, name := range d.DelChains {
		set(m.t, m.rules.Chains, name, Chain{})
	}
	for _, name := range d.DelAffinity {
		if m.rules.Chains[name].Affinity != 0 {
			m.t.Errorf("the affinity map of %s goes while its rules use it", name)
		}
		del(m.t, m.affinity, name)
	}
	for name := range d.AddAffinity {
		add(m.t, m.affinity, name, true)
	}
	for name, chain := range d.AddChains {
		set(m.t, m.rules.Chains, name, chain)
	}
	for name, chain := range d.SetChains {
		set(m.t, m.rules.Chains, name, chain)
	}
	for _, name := range d.DelChains {
		del(m.t, m.rules.Chains, name)
		for _, chain := range m.rules.Chains {
			if chain.Next == name || chain.Cluster == name {
				m.t.Errorf("chain %s goes while another leads to it", name)
			}
		}
		if slices.Contains(slices.Collect(maps.Values(m.rules.Frontends)), name) {
			m.t.Errorf("chain %s goes while a frontend leads to it", name)
		}
	}
}

func add[K comparable, V any](t *testing.T, in map[K]V, key K, value V) {
	t.Helper()
	if _, there := in[key]; there {
		t.Errorf("added twice: %v", key)
	}
	in[key] = value
}

func set[K comparable, V any](t *testing.T, in map[K]V, key K, value V) {
	t.Helper()
	if _, there := in[key]; !there {
		t.Errorf("changed, but not there: %v", key)
	}
	in[key] = value
}

func del[K comparable, V any](t *testing.T, in map[K]V, key K) {
	t.Helper()
	if _, there := in[key]; !there {
		t.Errorf("deleted, but not there: %v", key)
	}
	delete(in, key)
}
