package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/raftstore"
)

// TestStatusExitCodes: the exit code of `cluster status` is the health of the cluster, in each
// format, and equals that in JSON and YAML, also if no server answers. A script may use either.
func TestStatusExitCodes(t *testing.T) {
	degraded := observed(true, 3, 50)
	degraded.Peers[0].Status.Warnings = []string{"a backup failed"}
	lost := observed(false, 4, 51) // one of three voters answers
	for _, name := range []string{"s2", "s3"} {
		lost.Peers = append(lost.Peers,
			raftstore.PeerStatus{Member: raftstore.Member{ID: name, Name: name, Voter: true}, Error: "no answer"})
	}
	for name, c := range map[string]struct {
		observation *clusterstatus.Observation // nil: nobody listens
		health      clusterstatus.ClusterHealth
		code        int
		says        string // the text
	}{
		"healthy": {observed(true, 3, 50), clusterstatus.Healthy, 0, "healthy"},
		"serves, and ill": {degraded, clusterstatus.Degraded, exitcode.Degraded,
			"serves, but 1 thing needs attention"},
		"without a quorum": {lost, clusterstatus.NoQuorum, exitcode.NoQuorum, "WITHOUT A QUORUM"},
		"no answer":        {nil, clusterstatus.NoAnswer, exitcode.NoAnswer, ""},
	} {
		kubeconfig := kubeconfigOf(t,
			func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(c.observation) })
		args := []string{"cluster", "status", "--kubeconfig", kubeconfig, "--data-dir", t.TempDir(), "--timeout", "2m"}
		if c.observation == nil {
			args = append(args, "--server", deadServer)
		}
		for _, format := range []string{"", "json", "yaml"} {
			out, err := run(t, append(args, "-o", format)...)
			if exitCode(err) != c.code {
				t.Errorf("%s, format %q: exit code %d, want %d: %v", name, format, exitCode(err), c.code, err)
			}
			if format == "" {
				if !strings.Contains(out, c.says) || (out == "") != (c.says == "") {
					t.Errorf("%s: the text has no %q:\n%s", name, c.says, out)
				}
				continue
			}
			var s clusterstatus.ClusterStatus
			// JSON is YAML
			if err := yaml.Unmarshal([]byte(out), &s); err != nil || s.Health != c.health || s.Time.IsZero() {
				t.Errorf("%s, format %q: %v, health %q, want %q:\n%s", name, format, err, s.Health, c.health, out)
			}
			if (len(s.Unreached) > 0) != (c.observation == nil) {
				t.Errorf("%s, format %q: unreached are %+v", name, format, s.Unreached)
			}
		}
	}
}
