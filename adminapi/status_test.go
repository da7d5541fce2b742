package adminapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"testing"

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
