package garbagecollector

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/controllers/runtime"
)

// absentees remembers owners that do not exist, so that the thousand dependents of one owner cost
// one read. A UID never comes back, so an entry never becomes wrong.
type absentees struct {
	mu   sync.Mutex
	seen map[absentee]struct{}
}

// absentee is an owner as a reference names it: another reference may be right about the UID and
// wrong about the place.
type absentee struct {
	uid   types.UID
	where runtime.Key
}

// manyAbsentees is when the memory starts afresh.
const manyAbsentees = 10000

func (a *absentees) has(uid types.UID, where runtime.Key) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.seen[absentee{uid, where}]
	return ok
}

func (a *absentees) add(uid types.UID, where runtime.Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen == nil || len(a.seen) >= manyAbsentees {
		a.seen = map[absentee]struct{}{}
	}
	a.seen[absentee{uid, where}] = struct{}{}
}
