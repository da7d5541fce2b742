package adminapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
)

type fakeViews struct{ views []gossip.View }

func (f fakeViews) Views(_ context.Context, which func(gossip.Member) bool) ([]gossip.View, map[string]error) {
	silent := map[string]error{}
	for _, m := range []gossip.Member{{Name: "s2", Role: pki.RoleServer}, {Name: "a1", Role: pki.RoleAgent}} {
		if which(m) {
			silent[m.Name] = errors.New("it does not answer")
		}
	}
	return f.views, silent
}

func TestGossipHandler(t *testing.T) {
	views := fakeViews{[]gossip.View{
		{From: "s1", Members: []gossip.Seen{{Name: "s3", State: gossip.Alive}}},
		{From: "s4", Members: []gossip.Seen{{Name: "s3", State: gossip.Dead}}},
	}}
	for query, silent := range map[string]int{"": 1, "?agents=true": 2} {
		w := httptest.NewRecorder()
		GossipHandler("s1", views).ServeHTTP(w, httptest.NewRequest("GET", clusterstatus.GossipPath+query, nil))
		var g clusterstatus.GossipViews
		if err := json.Unmarshal(w.Body.Bytes(), &g); err != nil || w.Code != 200 || g.From != "s1" ||
			len(g.Views) != 2 || len(g.Silent) != silent ||
			len(g.Disagreements) != 1 || g.Disagreements[0].About != "s3" {
			t.Errorf("%q: %d, %s, %v", query, w.Code, w.Body, err)
		}
	}
	w := httptest.NewRecorder()
	GossipHandler("s1", views).ServeHTTP(w, httptest.NewRequest("POST", clusterstatus.GossipPath, nil))
	if w.Code != 405 {
		t.Errorf("POST: %d", w.Code)
	}
}

// TestBriefStatus: pages that ask at about the same time share one observation, which is soon
// replaced. It has the servers, and of the agents those that are not well.
func TestBriefStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		observed := 0
		h := StatusHandler(func(context.Context) *clusterstatus.Observation {
			observed++
			return &clusterstatus.Observation{From: "s1", Time: time.Now(), Nodes: []clusterstatus.NodeView{
				{Node: "s1", Role: pki.RoleServer, State: gossip.Alive},
				{Node: "a1", Role: pki.RoleAgent, State: gossip.Alive},
				{Node: "a2", Role: pki.RoleAgent, State: gossip.Dead},
				{Node: "a3", Role: pki.RoleAgent, State: gossip.Alive}}}
		})
		ask := func() (b clusterstatus.Brief) {
			t.Helper()
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", clusterstatus.StatusPath+"?form="+clusterstatus.FormBrief, nil))
			if err := json.Unmarshal(w.Body.Bytes(), &b); err != nil || w.Code != 200 {
				t.Fatalf("%d, %v", w.Code, err)
			}
			return b
		}
		b := ask()
		var names []string
		for _, m := range b.Members {
			names = append(names, m.Name)
		}
		if slices.Sort(names); b.Agents != 3 || b.LivingAgents != 2 || !slices.Equal(names, []string{"a2", "s1"}) {
			t.Errorf("%d of %d agents live; the members are %v", b.LivingAgents, b.Agents, names)
		}
		time.Sleep(time.Second)
		if ask(); observed != 1 {
			t.Errorf("within a second the cluster is observed %d times", observed)
		}
		time.Sleep(2 * time.Second)
		if ask(); observed != 2 {
			t.Errorf("after three seconds the cluster was observed %d times", observed)
		}
	})
}
