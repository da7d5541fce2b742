package adminapi

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/barque/barque/apiserver/extra"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
)

// StatusHandler serves StatusPath.
func StatusHandler(observe func(context.Context) *clusterstatus.Observation) http.Handler {
	short := &sharedBrief{observe: observe}
	return extra.Get(func(r *http.Request) any {
		switch r.URL.Query().Get("form") {
		case clusterstatus.FormObservation:
			return observe(r.Context())
		case clusterstatus.FormBrief:
			return short.get(r.Context())
		}
		return clusterstatus.Assemble(time.Now(), observe(r.Context()))
	})
}

// briefAge is the greatest age of a brief status: pages that are open at once share one.
const briefAge = 2 * time.Second

// sharedBrief makes brief statuses, one at a time.
type sharedBrief struct {
	observe func(context.Context) *clusterstatus.Observation

	mu   sync.Mutex
	last *clusterstatus.Brief
	at   time.Time
}

func (b *sharedBrief) get(ctx context.Context) *clusterstatus.Brief {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last == nil || time.Since(b.at) > briefAge {
		// The leaving of one client is no reason for the others to get less.
		b.last = clusterstatus.NewBrief(clusterstatus.Assemble(time.Now(), b.observe(context.WithoutCancel(ctx))))
		b.at = time.Now()
	}
	return b.last
}

// viewsTimeout bounds the probes of members. A healthy one answers within a second.
const viewsTimeout = 3 * time.Second

// viewer is the pool's interface for the views.
type viewer interface {
	Views(ctx context.Context, which func(gossip.Member) bool) ([]gossip.View, map[string]error)
}

func gossipViews(ctx context.Context, self string, pool viewer, agents bool) clusterstatus.GossipViews {
	ctx, cancel := context.WithTimeout(ctx, viewsTimeout)
	defer cancel()
	views, silent := pool.Views(ctx, func(m gossip.Member) bool { return agents || m.Role == pki.RoleServer })
	return clusterstatus.NewGossipViews(self, views, silent)
}

// GossipHandler serves GossipPath.
func GossipHandler(self string, pool viewer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, "only GET is served here", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(
			gossipViews(r.Context(), self, pool, r.URL.Query().Get("agents") == "true")); err != nil {
			return // the client has gone
		}
	})
}
