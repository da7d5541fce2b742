package node

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/barque/barque/membership/gossip"
)

// GossipPath answers with GossipViews: what the members of the pool see of each other. The
// parameter agents=true asks the agents, too. RBAC says who may.
const GossipPath = "/barque/v1/gossip"

// GossipViews are the views of the members that were asked.
type GossipViews struct {
	From string `json:"from"` // the server that answers
	// Views begin with that of From.
	Views []gossip.View `json:"views"`
	// Silent are living members that did not answer From, with the reason.
	Silent map[string]string `json:"silent,omitempty"`
	// Disagreements are the members of which the views differ, such as one that A sees and B does
	// not. A change that has not spread yet shows here for some seconds.
	Disagreements []gossip.Disagreement `json:"disagreements,omitempty"`
}

// viewsTimeout bounds how long members are asked. One that is well takes a second at most.
const viewsTimeout = 3 * time.Second

// viewer is what the views need of the pool.
type viewer interface {
	Views(ctx context.Context, which func(gossip.Member) bool) ([]gossip.View, map[string]error)
}

func gossipViews(ctx context.Context, self string, pool viewer, agents bool) GossipViews {
	ctx, cancel := context.WithTimeout(ctx, viewsTimeout)
	defer cancel()
	views, silent := pool.Views(ctx, func(m gossip.Member) bool { return agents || m.Role == roleServer })
	answer := GossipViews{From: self, Views: views, Disagreements: gossip.Disagreements(views)}
	for name, err := range silent {
		if answer.Silent == nil {
			answer.Silent = map[string]string{}
		}
		answer.Silent[name] = err.Error()
	}
	return answer
}

// gossipHandler serves GossipPath.
func gossipHandler(self string, pool viewer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, "only GET is served here", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(gossipViews(r.Context(), self, pool, r.URL.Query().Get("agents") == "true")); err != nil {
			return // the client has gone
		}
	})
}
