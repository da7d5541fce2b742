package ephemeralvolume

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// From any claims, one plan needs no second one. Another owner's claim blocks it until that is
// gone.
func TestDecideConverges(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 1))
		var volumes []string
		for i := range r.IntN(5) {
			volumes = append(volumes, fmt.Sprint("v", i))
		}
		p := pod(volumes...)
		claims := map[string]*corev1.PersistentVolumeClaim{}
		find := func(name string) (*corev1.PersistentVolumeClaim, error) { return claims[name], nil }
		taken := ""
		if len(volumes) > 0 && r.IntN(2) == 0 {
			taken = "p-" + volumes[r.IntN(len(volumes))]
			claims[taken] = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: taken}}
		}
		apply := func() error {
			create, _, err := decide(p, find)
			for _, m := range create {
				if claims[m.object.Name] != nil {
					t.Fatalf("seed %d: claim %s is made, and there", seed, m.object.Name)
				}
				claims[m.object.Name] = m.object
			}
			return err
		}
		if err := apply(); (err != nil) != (taken != "") {
			t.Fatalf("seed %d: %v, taken is %q", seed, err, taken)
		}
		if create, _, err := decide(p, find); len(create) > 0 || (err != nil) != (taken != "") {
			t.Fatalf("seed %d: a second plan makes %d, %v", seed, len(create), err)
		}
		delete(claims, taken)
		if err := apply(); err != nil || len(claims) != len(volumes) {
			t.Fatalf("seed %d: in the end there are %d claims of %d volumes, %v", seed, len(claims), len(volumes), err)
		}
		if create, _, err := decide(p, find); len(create) > 0 || err != nil {
			t.Fatalf("seed %d: a last plan makes %d, %v", seed, len(create), err)
		}
	}
}
