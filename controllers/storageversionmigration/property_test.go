package storageversionmigration

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	migrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// For any migrations in any order: of each resource one runs at a time, and all are over in the
// end, each by four steps.
func TestDecideConverges(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		var all []*migrationv1.StorageVersionMigration
		for i := range 1 + r.IntN(6) {
			m := newMigration(fmt.Sprint("m", i))
			m.Spec.Resource.Resource = fmt.Sprint("r", r.IntN(2))
			m.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(r.IntN(3)) * time.Second))
			all = append(all, m)
		}
		steps := 0
		for range 2000 {
			m := all[r.IntN(len(all))]
			s := decide(m, all)
			if s != waiting && s != over {
				steps++
			}
			switch s {
			case beginning:
				m.Status = with(m.Status, migrationv1.MigrationRunning, metav1.ConditionTrue, "r", "", now)
			case marking:
				m.Status.ResourceVersion = "5"
			case migrating:
				how := []migrationv1.MigrationConditionType{migrationv1.MigrationSucceeded,
					migrationv1.MigrationFailed}[r.IntN(2)]
				m.Status = with(m.Status, how, metav1.ConditionTrue, "r", "", now)
			case finishing:
				m.Status = with(m.Status, migrationv1.MigrationRunning, metav1.ConditionFalse, "r", "", now)
			}
			running := map[string]int{}
			for _, m := range all {
				if is(m, migrationv1.MigrationRunning) {
					if running[m.Spec.Resource.Resource]++; running[m.Spec.Resource.Resource] > 1 {
						t.Fatalf("seed %d: two migrations of %s run", seed, m.Spec.Resource.Resource)
					}
				}
			}
		}
		for _, m := range all {
			if decide(m, all) != over {
				t.Fatalf("seed %d: %s is not over: %+v", seed, m.Name, m.Status)
			}
		}
		if steps != 4*len(all) {
			t.Fatalf("seed %d: %d steps of %d migrations", seed, steps, len(all))
		}
	}
}
