package ask

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/raftstore"
)

// TestClusterWithALeaderIsNotRecovered: another server of the same cluster answers, and has a
// leader.
func TestClusterWithALeaderIsNotRecovered(t *testing.T) {
	says := func(cluster, leader string) string {
		peer := func(name string, status *raftstore.Status) raftstore.PeerStatus {
			return raftstore.PeerStatus{Member: raftstore.Member{ID: name + ".x", Name: name, Self: status != nil},
				Status: status}
		}
		o := clusterstatus.Observation{Cluster: cluster, From: "s2",
			Peers: []raftstore.PeerStatus{peer("s1", nil), peer("s2", &raftstore.Status{LeaderID: leader}),
				peer("s3", nil)}}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if err := json.NewEncoder(w).Encode(o); err != nil {
				t.Error(err)
			}
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	broken := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(broken.Close)
	const gone = "http://127.0.0.1:1" // no server of a test gets this port
	for what, c := range map[string]struct {
		addresses []string
		refused   bool
	}{
		"nobody is known":        {nil, false},
		"nobody answers":         {[]string{gone, broken.URL}, false},
		"one leads":              {[]string{gone, says("c", "s2.x")}, true},
		"one follows":            {[]string{says("c", "s3.x"), broken.URL}, true},
		"none has a leader":      {[]string{says("c", ""), says("c", "")}, false},
		"one of another cluster": {[]string{says("new", "s2.x")}, false},
	} {
		err := hasLeader(t.Context(), new(rest.Config), "c", "s1", c.addresses)
		if (err != nil) != c.refused ||
			err != nil && !strings.Contains(err.Error(), "start s1 instead, and nothing is lost") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
