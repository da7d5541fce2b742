package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/raftstore"
)

// observed is the view of a cluster's only server.
func observed(leader bool, term, revision uint64) *clusterstatus.Observation {
	s := &raftstore.Status{ID: "s1.x", Name: "s1", Role: "candidate", Term: term, Revision: revision, Version: "v1"}
	if leader {
		s.Role, s.LeaderID = "leader", s.ID
	}
	member := raftstore.Member{ID: s.ID, Name: s.Name, Address: "127.0.0.1:1", Voter: true, Leader: leader, Self: true}
	return &clusterstatus.Observation{Cluster: "c", From: "s1", Time: time.Now(),
		Peers: []raftstore.PeerStatus{{Member: member, Status: s}}}
}

// watchOf runs `cluster status --watch` on a server with an answer for each request. It returns the
// output before the first request without one, which ends the command.
func watchOf(t *testing.T, looks []http.HandlerFunc, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var n atomic.Int32
	kubeconfig := kubeconfigOf(t, func(w http.ResponseWriter, r *http.Request) {
		look := int(n.Add(1)) - 1
		if look < len(looks) {
			looks[look](w, r)
			return
		}
		cancel()
		<-r.Context().Done()
	})
	cmd, out := root(), new(bytes.Buffer)
	cmd.SetArgs(
		append(
			[]string{"cluster", "status", "--watch", "--interval", "100ms", "--timeout", "1m", "--kubeconfig",
				kubeconfig, "--data-dir", t.TempDir()}, args...))
	cmd.SetOut(out)
	cmd.SetErr(io.Discard)
	if err := cmd.ExecuteContext(ctx); err != nil || ctx.Err() == nil {
		t.Errorf("the watch ended by itself or with an error: %v", err)
	}
	return out.String()
}

// TestWatchStatus: each request is one line or one document. A failed one is reported, and does not
// end the command.
func TestWatchStatus(t *testing.T) {
	answer := func(o *clusterstatus.Observation) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(o) }
	}
	looks := []http.HandlerFunc{
		answer(observed(true, 3, 50)),
		statusOnly(http.StatusServiceUnavailable, "ServiceUnavailable"),
		answer(observed(false, 4, 51)),
	}
	t.Run("lines", func(t *testing.T) {
		lines := strings.Split(strings.TrimSuffix(watchOf(t, looks), "\n"), "\n")
		if len(lines) != len(looks) {
			t.Fatalf("%d looks make %q", len(looks), lines)
		}
		for i, want := range []string{" leader=s1 term=3 revision=50 voters=1/1", "no answer: ",
			string(clusterstatus.NoQuorum) + " leader=none term=4 revision=51 voters=1/1"} {
			when, what, _ := strings.Cut(lines[i], " ")
			if _, err := time.Parse(time.RFC3339, when); err != nil || !strings.Contains(" "+what, want) {
				t.Errorf("look %d: %q; want a time and %q", i, lines[i], want)
			}
		}
		if !strings.Contains(lines[1], "because") {
			t.Errorf("%q does not say what the server answers", lines[1])
		}
	})
	for format, each := range map[string]func(out string, do func([]byte) error) error{
		"json": func(out string, do func([]byte) error) error {
			d := json.NewDecoder(strings.NewReader(out))
			for {
				var raw json.RawMessage
				if err := d.Decode(&raw); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return err
				}
				if err := do(raw); err != nil {
					return err
				}
			}
		},
		"yaml": func(out string, do func([]byte) error) error {
			before, documents, _ := strings.Cut(out, "---\n")
			if before != "" {
				return fmt.Errorf("before the first document: %q", before)
			}
			for document := range strings.SplitSeq(documents, "---\n") {
				raw, err := yaml.YAMLToJSON([]byte(document))
				if err != nil {
					return err
				}
				if err := do(raw); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		t.Run(format, func(t *testing.T) {
			type look struct {
				clusterstatus.ClusterStatus
				Error string `json:"error"`
			}
			var got []look
			err := each(watchOf(t, looks, "-o", format), func(raw []byte) error {
				var l look
				defer func() { got = append(got, l) }()
				return json.Unmarshal(raw, &l)
			})
			if err != nil || len(got) != len(looks) {
				t.Fatalf("%d looks make %d: %v", len(looks), len(got), err)
			}
			if l := got[0]; l.Leader != "s1" || l.Term != 3 || l.Revision != 50 || l.Error != "" {
				t.Errorf("the first look: %+v", l)
			}
			if l := got[1]; l.Error == "" || l.Time.IsZero() || len(l.Members) > 0 {
				t.Errorf("the one that failed: %+v", l)
			}
			if l := got[2]; l.Leader != "" || l.Health != clusterstatus.NoQuorum || l.Term != 4 || l.Error != "" {
				t.Errorf("the last look: %+v", l)
			}
		})
	}
}
