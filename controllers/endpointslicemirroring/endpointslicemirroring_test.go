package endpointslicemirroring

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/barque/barque/controllers/controllertest"
)

//lint:file-ignore SA1019 Endpoints are deprecated, and still written by users that this is for.

func endpointsOf(subsets ...corev1.EndpointSubset) *corev1.Endpoints {
	return &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "db", UID: "e"}, Subsets: subsets}
}

func at(ips ...string) (list []corev1.EndpointAddress) {
	for _, ip := range ips {
		list = append(list, corev1.EndpointAddress{IP: ip})
	}
	return list
}

func port(name string, number int32) corev1.EndpointPort {
	return corev1.EndpointPort{Name: name, Port: number, Protocol: corev1.ProtocolTCP}
}

// text writes a slice on one line: its name, family, ports and addresses, with ! behind addresses
// that are not ready.
func text(s *discoveryv1.EndpointSlice) string {
	var ports, addresses []string
	for _, p := range s.Ports {
		ports = append(ports, fmt.Sprint(*p.Name, *p.Port))
	}
	for _, e := range s.Endpoints {
		mark := ""
		if !*e.Conditions.Ready {
			mark = "!"
		}
		addresses = append(addresses, e.Addresses[0]+mark)
	}
	return fmt.Sprintf("%s %s [%s] %s", s.Name, s.AddressType, strings.Join(ports, " "), strings.Join(addresses, " "))
}

func texts(list []*discoveryv1.EndpointSlice) (out []string) {
	for _, s := range list {
		out = append(out, text(s))
	}
	return out
}

func TestDecide(t *testing.T) {
	web, admin := port("web", 80), port("admin", 81)
	// named are the slices of these Endpoints, with names.
	named := func(e *corev1.Endpoints, names ...string) []*discoveryv1.EndpointSlice {
		list := decide(e, nil).create
		for i, s := range list {
			s.Name = names[i]
		}
		return list
	}
	one := endpointsOf(corev1.EndpointSubset{Addresses: at("10.0.0.1"), Ports: []corev1.EndpointPort{web}})
	for _, c := range []struct {
		name      string
		endpoints *corev1.Endpoints
		are       []*discoveryv1.EndpointSlice
		want      plan
		create    []string
		update    []string
		delete    []string
	}{
		{name: "nothing", endpoints: endpointsOf()},
		{
			name: "families, readiness, an irregular address and one that is none",
			endpoints: endpointsOf(corev1.EndpointSubset{
				Addresses: at("10.0.0.2", "fd00::0001", "010.0.0.1", "nonsense"), NotReadyAddresses: at("10.0.0.3"),
				Ports: []corev1.EndpointPort{web},
			}),
			create: []string{" IPv4 [web80] 10.0.0.1 10.0.0.2 10.0.0.3!", " IPv6 [web80] fd00::1"},
			want:   plan{invalid: 1},
		},
		{
			name: "an address in two subsets has both ports, and is not ready where it is said once",
			endpoints: endpointsOf(
				corev1.EndpointSubset{Addresses: at("10.0.0.1", "10.0.0.2"), Ports: []corev1.EndpointPort{web}},
				corev1.EndpointSubset{Addresses: at("10.0.0.1"), NotReadyAddresses: at("10.0.0.2"),
					Ports: []corev1.EndpointPort{admin}},
			),
			create: []string{" IPv4 [admin81] 10.0.0.2!", " IPv4 [admin81 web80] 10.0.0.1", " IPv4 [web80] 10.0.0.2"},
		},
		{
			name: "ready and not ready for the same port",
			endpoints: endpointsOf(
				corev1.EndpointSubset{Addresses: at("10.0.0.1"), NotReadyAddresses: at("10.0.0.1"),
					Ports: []corev1.EndpointPort{web}}),
			create: []string{" IPv4 [web80] 10.0.0.1!"},
		},
		{name: "no ports", endpoints: endpointsOf(corev1.EndpointSubset{Addresses: at("10.0.0.1")}),
			create: []string{" IPv4 [] 10.0.0.1"}},
		{name: "no change", endpoints: one, are: named(one, "a")},
		{
			name:      "another address",
			endpoints: endpointsOf(corev1.EndpointSubset{Addresses: at("10.0.0.9"), Ports: []corev1.EndpointPort{web}}),
			are:       named(one, "a"), update: []string{"a IPv4 [web80] 10.0.0.9"},
		},
		{
			name: "another port: the slice serves again",
			endpoints: endpointsOf(
				corev1.EndpointSubset{Addresses: at("10.0.0.1"), Ports: []corev1.EndpointPort{admin}}),
			are: named(one, "a"), update: []string{"a IPv4 [admin81] 10.0.0.1"},
		},
		{
			name:      "another family: it cannot",
			endpoints: endpointsOf(corev1.EndpointSubset{Addresses: at("fd00::1"), Ports: []corev1.EndpointPort{web}}),
			are:       named(one, "a"), create: []string{" IPv6 [web80] fd00::1"},
			delete: []string{"a IPv4 [web80] 10.0.0.1"},
		},
		{name: "none left", endpoints: endpointsOf(), are: named(one, "a"),
			delete: []string{"a IPv4 [web80] 10.0.0.1"}},
		{name: "two that are alike", endpoints: one, are: append(named(one, "b"), named(one, "a")...),
			delete: []string{"b IPv4 [web80] 10.0.0.1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := decide(c.endpoints, c.are)
			for _, s := range []struct {
				what      string
				got, want []string
			}{{"created", texts(got.create), c.create}, {"updated", texts(got.update), c.update},
				{"deleted", texts(got.delete), c.delete}} {
				if !slices.Equal(s.got, s.want) {
					t.Errorf("%s: %q, want %q", s.what, s.got, s.want)
				}
			}
			if got.invalid != c.want.invalid || got.surplus != c.want.surplus {
				t.Errorf("%d invalid and %d surplus", got.invalid, got.surplus)
			}
		})
	}
}

func TestDecideMetadata(t *testing.T) {
	e := endpointsOf(corev1.EndpointSubset{Addresses: []corev1.EndpointAddress{{
		IP: "10.0.0.1", Hostname: "h", NodeName: new("n"),
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "p", UID: "u"},
	}}})
	e.Labels = map[string]string{"l": "v", discoveryv1.LabelManagedBy: "me"}
	e.Annotations = map[string]string{"a": "v", corev1.EndpointsLastChangeTriggerTime: "x",
		corev1.LastAppliedConfigAnnotation: "x"}
	s := decide(e, nil).create[0]
	if want := map[string]string{"l": "v", discoveryv1.LabelManagedBy: ManagedBy,
		discoveryv1.LabelServiceName: "db"}; !maps.Equal(s.Labels, want) {
		t.Errorf("labels %v", s.Labels)
	}
	if !maps.Equal(s.Annotations, map[string]string{"a": "v"}) {
		t.Errorf("annotations %v", s.Annotations)
	}
	if o := metav1.GetControllerOf(s); s.GenerateName != "db-" || o == nil || o.Kind != "Endpoints" || o.UID != "e" {
		t.Errorf("name %q, owner %+v", s.GenerateName, o)
	}
	if at := s.Endpoints[0]; *at.Hostname != "h" || *at.NodeName != "n" || at.TargetRef.UID != "u" {
		t.Errorf("endpoint %+v", at)
	}
	// New Endpoints of the same name take over the old ones' slices.
	s.Name, e.UID = "s", "f"
	if got := decide(e, []*discoveryv1.EndpointSlice{s}).update; len(got) != 1 ||
		metav1.GetControllerOf(got[0]).UID != "f" {
		t.Errorf("updated: %v", texts(got))
	}
}

func TestSurplus(t *testing.T) {
	var ips []string
	for i := range perSubset + 7 {
		ips = append(ips, fmt.Sprintf("10.0.%d.%d", i/250, i%250))
	}
	p := decide(
		endpointsOf(corev1.EndpointSubset{Addresses: at(ips...), Ports: []corev1.EndpointPort{port("web", 80)}}), nil)
	if len(p.create) != 1 || len(p.create[0].Endpoints) != perSubset || p.surplus != 7 {
		t.Errorf("%d slices, %d surplus", len(p.create), p.surplus)
	}
}

// TestDecideConverges: the result of one plan needs no second one, and has each pair of address and
// port.
func TestDecideConverges(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	random := func() *corev1.Endpoints {
		var subsets []corev1.EndpointSubset
		for range rnd.IntN(4) {
			var s corev1.EndpointSubset
			for range rnd.IntN(5) {
				a := corev1.EndpointAddress{
					IP: []string{"10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2", "?"}[rnd.IntN(5)]}
				if rnd.IntN(2) == 0 {
					a.TargetRef = &corev1.ObjectReference{UID: types.UID(fmt.Sprint(rnd.IntN(2)))}
				}
				if rnd.IntN(3) == 0 {
					s.NotReadyAddresses = append(s.NotReadyAddresses, a)
				} else {
					s.Addresses = append(s.Addresses, a)
				}
			}
			for i := range rnd.IntN(3) {
				s.Ports = append(s.Ports, port(fmt.Sprint("p", i), int32(1+rnd.IntN(2))))
			}
			subsets = append(subsets, s)
		}
		return endpointsOf(subsets...)
	}
	var are []*discoveryv1.EndpointSlice
	for round := range 2_000 {
		e := random()
		p := decide(e, are)
		next := map[string]*discoveryv1.EndpointSlice{}
		for _, s := range are {
			next[s.Name] = s
		}
		for i, s := range p.create {
			s.Name = fmt.Sprintf("s-%d-%d", round, i)
			next[s.Name] = s
		}
		for _, s := range p.update {
			if was := next[s.Name]; was == nil || was.AddressType != s.AddressType {
				t.Fatalf("seed %d, round %d: the update %s is not of %+v", seed, round, text(s), was)
			}
			next[s.Name] = s
		}
		for _, s := range p.delete {
			delete(next, s.Name)
		}
		are = slices.Collect(maps.Values(next))
		if again := decide(e, are); len(again.create)+len(again.update)+len(again.delete) > 0 {
			t.Fatalf("seed %d, round %d: %+v needs a second plan: %q %q %q", seed, round, e.Subsets,
				texts(again.create), texts(again.update), texts(again.delete))
		}
		if got, want := pairsOfSlices(are), pairsOf(e); !maps.Equal(got, want) {
			t.Fatalf("seed %d, round %d: slices hold %v, want %v", seed, round, got, want)
		}
	}
}

// pairsOf returns the readiness of an Endpoints object's pairs, by address, target and port.
func pairsOf(e *corev1.Endpoints) map[string]bool {
	pairs := map[string]bool{}
	for _, s := range e.Subsets {
		ports := []string{"-"}
		if len(s.Ports) > 0 {
			ports = nil
		}
		for _, p := range s.Ports {
			ports = append(ports, fmt.Sprint(p.Name, p.Port))
		}
		for _, addresses := range []struct {
			list  []corev1.EndpointAddress
			ready bool
		}{{s.Addresses, true}, {s.NotReadyAddresses, false}} {
			for _, a := range addresses.list {
				if a.IP == "?" {
					continue
				}
				for _, p := range ports {
					key := fmt.Sprintln(a.IP, uid(a.TargetRef), p)
					was, known := pairs[key]
					pairs[key] = addresses.ready && (was || !known)
				}
			}
		}
	}
	// An address with ports is in a slice with ports, which cannot also list it without one.
	for key, ready := range maps.Clone(pairs) {
		at, none := strings.CutSuffix(key, " -\n")
		for other := range pairs {
			if none && other != key && pairs[other] == ready && strings.HasPrefix(other, at+" ") {
				delete(pairs, key)
			}
		}
	}
	return pairs
}

func pairsOfSlices(list []*discoveryv1.EndpointSlice) map[string]bool {
	pairs := map[string]bool{}
	for _, s := range list {
		for _, e := range s.Endpoints {
			if len(s.Ports) == 0 {
				pairs[fmt.Sprintln(e.Addresses[0], uid(e.TargetRef), "-")] = *e.Conditions.Ready
			}
			for _, p := range s.Ports {
				pairs[fmt.Sprintln(e.Addresses[0], uid(e.TargetRef),
					fmt.Sprint(*p.Name, *p.Port))] = *e.Conditions.Ready
			}
		}
	}
	return pairs
}

func uid(ref *corev1.ObjectReference) types.UID {
	if ref == nil {
		return ""
	}
	return ref.UID
}

func TestMirrors(t *testing.T) {
	service := func(name string, selector map[string]string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name},
			Spec: corev1.ServiceSpec{Selector: selector}}
	}
	written := func(name string, change func(*corev1.Endpoints)) *corev1.Endpoints {
		e := endpointsOf(
			corev1.EndpointSubset{Addresses: at("10.0.0.1"), Ports: []corev1.EndpointPort{port("web", 80)}})
		e.Name, e.UID = name, ""
		if change != nil {
			change(e)
		}
		return e
	}
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t,
			service("db", nil), written("db", nil),
			service("selected", map[string]string{"a": "b"}), written("selected", nil),
			service("empty", map[string]string{}), written("empty", nil),
			service("skipped", nil),
			written("skipped",
				func(e *corev1.Endpoints) { e.Labels = map[string]string{discoveryv1.LabelSkipMirror: "true"} }),
			service("lock", nil), written("lock", func(e *corev1.Endpoints) {
				e.Annotations = map[string]string{resourcelock.LeaderElectionRecordAnnotationKey: "{}"}
			}),
			written("alone", nil),
			&discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "users",
					Labels: map[string]string{discoveryv1.LabelServiceName: "db"}}},
		)
		ctrl, err := New(Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		mirrors := func(of string) (out []string) {
			list, err := c.Client.DiscoveryV1().EndpointSlices("d").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range list.Items {
				if s.Labels[discoveryv1.LabelManagedBy] == ManagedBy && s.Labels[discoveryv1.LabelServiceName] == of {
					s.Name = ""
					out = append(out, text(&s))
				}
			}
			return out
		}
		is := func(of string, want ...string) {
			t.Helper()
			controllertest.Eventually(t, fmt.Sprintf("the mirror of %s is %q", of, want),
				func() bool { return slices.Equal(mirrors(of), want) })
		}
		first := " IPv4 [web80] 10.0.0.1"
		is("db", first)
		synctest.Wait()
		for _, name := range []string{"selected", "empty", "skipped", "lock", "alone"} {
			if got := mirrors(name); len(got) > 0 {
				t.Errorf("%s is mirrored: %q", name, got)
			}
		}

		e, err := c.Client.CoreV1().Endpoints("d").Get(t.Context(), "db", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		e.Subsets[0].Addresses = at("10.0.0.2")
		if e, err = c.Client.CoreV1().Endpoints("d").Update(t.Context(), e, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		second := " IPv4 [web80] 10.0.0.2"
		is("db", second)

		// A slice that another client deletes or changes comes back.
		if err := c.Client.DiscoveryV1().EndpointSlices("d").DeleteCollection(t.Context(), metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=" + ManagedBy}); err != nil {
			t.Fatal(err)
		}
		is("db", second)

		e.Labels = map[string]string{discoveryv1.LabelSkipMirror: "true"}
		if e, err = c.Client.CoreV1().Endpoints("d").Update(t.Context(), e, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		is("db")
		e.Labels = nil
		if _, err = c.Client.CoreV1().Endpoints("d").Update(t.Context(), e, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		is("db", second)

		// A Service that comes later, and one that gets a selector.
		if _, err := c.Client.CoreV1().Services("d").Create(t.Context(), service("alone", nil),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		is("alone", first)
		if _, err := c.Client.CoreV1().Services("d").Update(t.Context(), service("alone", map[string]string{"a": "b"}),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		is("alone")
		if err := c.Client.CoreV1().Endpoints("d").Delete(t.Context(), "db", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		is("db")
		if _, err := c.Client.DiscoveryV1().EndpointSlices("d").Get(t.Context(), "users",
			metav1.GetOptions{}); err != nil {
			t.Errorf("a user's slice: %v", err)
		}
	})
}
