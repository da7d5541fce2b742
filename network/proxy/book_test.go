package proxy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// partsOf are the parts of all objects of a snapshot.
func partsOf(s Snapshot) map[source]*part {
	parts := map[source]*part{}
	one := s
	for _, service := range s.Services {
		of := source{ofService, service.Namespace, service.Name}
		one.Services, one.Slices, one.Pods = []*corev1.Service{service}, nil, nil
		for _, slice := range s.Slices {
			if serviceOf(slice) == of {
				one.Slices = append(one.Slices, slice)
			}
		}
		parts[of] = &part{source: of, created: service.CreationTimestamp.Time, rules: claimed(one, nil),
			checks: healthChecks(one)}
	}
	for _, pod := range s.Pods {
		of := source{ofPod, pod.Namespace, pod.Name}
		one.Services, one.Slices, one.Pods = nil, nil, []*corev1.Pod{pod}
		parts[of] = &part{source: of, created: pod.CreationTimestamp.Time, rules: claimed(one, nil)}
	}
	if len(s.Local) > 0 {
		of := source{kind: ofNode}
		one.Services, one.Slices, one.Pods = nil, nil, nil
		parts[of] = &part{source: of, rules: claimed(one, s.Local)}
	}
	return parts
}

func rulesCopy(r Rules) Rules {
	return Rules{Frontends: maps.Clone(r.Frontends), Refused: maps.Clone(r.Refused), Chains: maps.Clone(r.Chains),
		Hairpins: maps.Clone(r.Hairpins)}
}

// TestBookProperties: whatever changes in which order, the rules are those of a plan of everything,
// and what is said to have changed is what has.
func TestBookProperties(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 4))
		b, known := newBook(), map[source]*part{}
		local := map[Frontend]Backend{frontend("10.43.0.2", 80): backends("169.254.20.53")[0]}
		for step := range 20 {
			s := randomSnapshot(r)
			s.Local = local
			for _, service := range s.Services { // who is older varies
				service.CreationTimestamp = metav1.NewTime(time.Unix(int64(r.IntN(3)), 0))
			}
			next := partsOf(s)
			changed := map[source]*part{}
			for of, p := range next {
				if r.IntN(2) == 0 || known[of] == nil {
					changed[of] = p // also when it is as before
				} else if !reflect.DeepEqual(p, known[of]) {
					changed[of] = p
				}
			}
			for of := range known {
				if next[of] == nil {
					changed[of] = nil
				}
			}
			known = next
			before := rulesCopy(b.rules)
			delta, stale := b.update(changed)
			want := plan(s)
			if !reflect.DeepEqual(b.rules, want) {
				t.Fatalf("seed %d, step %d: the book has\n%+v\nwant\n%+v", seed, step, b.rules, want)
			}
			model := newModel(t, before)
			if model.apply(delta); t.Failed() || !reflect.DeepEqual(model.rules, want) {
				t.Fatalf("seed %d, step %d: the delta leads to\n%+v\nwant\n%+v", seed, step, model.rules, want)
			}
			if all := staleBetween(before, want); !reflect.DeepEqual(all, stale) {
				t.Fatalf("seed %d, step %d: stale are %v, want %v", seed, step, stale, all)
			}
			if got, want := b.healthChecks(), healthChecks(s); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, step %d: health checks %v, want %v", seed, step, got, want)
			}
			for f, claims := range b.claims {
				if len(claims) == 0 || !slices.IsSortedFunc(claims, compareParts) {
					t.Fatalf("seed %d, step %d: claims of %v", seed, step, f)
				}
			}
		}
		gone := map[source]*part{}
		for of := range known {
			gone[of] = nil
		}
		if b.update(gone); len(b.parts)+len(b.claims)+len(b.hairpins)+len(b.checks) > 0 ||
			!reflect.DeepEqual(b.rules, emptyRules()) {
			t.Fatalf("seed %d: left of nothing: %+v", seed, b)
		}
	}
}

// Of two services that claim an address the older has it, and the other when that goes.
func TestBookOfTwoClaimants(t *testing.T) {
	at := func(name string, created int64) *corev1.Service {
		return service(func(s *corev1.Service) {
			s.Name, s.CreationTimestamp = name, metav1.NewTime(time.Unix(created, 0))
			s.Spec.SessionAffinity = corev1.ServiceAffinityNone
		})
	}
	old, young := at("old", 1), at("young", 2)
	parts := partsOf(Snapshot{NodeName: here, Services: []*corev1.Service{old, young}})
	b := newBook()
	b.update(
		map[source]*part{{ofService, young.Namespace, "young"}: parts[source{ofService, young.Namespace, "young"}]})
	b.update(map[source]*part{{ofService, old.Namespace, "old"}: parts[source{ofService, old.Namespace, "old"}]})
	holds := func() string {
		names := map[string]bool{}
		for f := range b.claims {
			names[b.holder(f).source.name] = true
		}
		return fmt.Sprint(slices.Sorted(maps.Keys(names)))
	}
	if got := holds(); got != "[old]" {
		t.Errorf("held by %s", got)
	}
	b.update(map[source]*part{{ofService, old.Namespace, "old"}: nil})
	if got := holds(); got != "[young]" {
		t.Errorf("then held by %s", got)
	}
}
