package runtime

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Seen remembers, for one term, of which objects the informers have been compared with the API
// server: they show what the leader before has left. The zero value has seen none.
type Seen struct {
	mu  sync.Mutex
	has map[types.UID]bool
}

// Has reports whether an object has been seen.
func (s *Seen) Has(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.has[uid]
}

// Note remembers an object.
func (s *Seen) Note(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has == nil {
		s.has = map[types.UID]bool{}
	}
	s.has[uid] = true
}

// Forget drops an object that is gone.
func (s *Seen) Forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.has, uid)
}
