package adminapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/internal/clusterusers"
	"github.com/barque/barque/raftstore"
)

// members is a store of three members, the last of which has no vote.
type members struct {
	calls  []string
	err    error
	leader string // s1 when empty
	leaves string // an ID
}

func (m *members) Members() []raftstore.Member {
	all := []raftstore.Member{{ID: "s1.x", Name: "s1", Voter: true}, {ID: "s2.y", Name: "s2", Voter: true},
		{ID: "s3.z", Name: "s3"}}
	for i := range all {
		all[i].Leader = all[i].ID == cmp.Or(m.leader, "s1.x")
	}
	return all
}

func (m *members) call(what, id string) error {
	m.calls = append(m.calls, what+" "+id)
	return m.err
}

func (m *members) Remove(_ context.Context, id, _ string) error { return m.call("remove", id) }
func (m *members) Demote(_ context.Context, id string) error    { return m.call("demote", id) }
func (m *members) Promote(_ context.Context, id string) error   { return m.call("promote", id) }

func (m *members) TransferLeadership(_ context.Context, id string) error {
	m.leader = cmp.Or(id, "s2.y")
	return m.call("lead", id)
}

func (m *members) Leaving(id string) bool { return id == m.leaves }

func (m *members) CheckDeparture(_ context.Context, id string) error { return m.call("check", id) }

// others are no members of the store.
type others struct{ agents, former []string }

func (s others) IsAgent(name string) bool  { return slices.Contains(s.agents, name) }
func (s others) IsFormer(name string) bool { return slices.Contains(s.former, name) }

func TestChangeMember(t *testing.T) {
	refused := &raftstore.RefusedError{Reason: "no quorum would stay"}
	for name, c := range map[string]struct {
		method, path string
		err          error
		status       int
		want         string // part of the answer
		calls        []string
	}{
		"removed": {"POST", "s2?change=remove", nil, 200, `"done":true`, []string{"remove s2.y"}},
		"asked about": {"GET", "s1?change=remove", nil, 200, `"s1 hands leadership over","s1 loses its vote"`,
			[]string{"check s1.x"}},
		"and what it costs": {"GET", "s2?change=remove", nil, 200, `"voters":{"before":2,"after":1}`,
			[]string{"check s2.y"}},
		"asked and refused": {"GET", "s2?change=demote", refused, 409, `"refused":true`, []string{"check s2.y"}},
		"nothing to demote": {"GET", "s3?change=demote", nil, 200,
			`"steps":["s3 stays without a vote until it is promoted"],"voters":{"before":2,"after":2}`,
			[]string{"check s3.z"}},
		"demoted":         {"POST", "s2?change=demote", nil, 200, `"done":true`, []string{"demote s2.y"}},
		"promoted":        {"POST", "s3?change=promote", nil, 200, `"after":3`, []string{"promote s3.z"}},
		"made the leader": {"POST", "s2?change=lead", nil, 200, `"leader":"s2"`, []string{"lead s2.y"}},
		"refused, by its name": {"POST", "s3?change=lead",
			&raftstore.RefusedError{Reason: `server "s3.z" has no vote`}, 409, `"error":"server s3 has no vote"`,
			[]string{"lead s3.z"}},
		"whoever leads best": {"POST", "-?change=lead", nil, 200, `"leader":"s2"`, []string{"lead "}},
		"nobody else is any": {"POST", "-?change=remove", nil, 404, `"noSuchServer":true`, nil},
		"unknown":            {"POST", "s9?change=remove", nil, 404, "the members are s1, s2, s3", nil},
		"an agent":           {"POST", "a1?change=remove", nil, 404, "barque kubectl delete node a1", nil},
		"an agent has no vote": {"POST", "a1?change=promote", nil, 404, "an agent, which neither votes nor leads",
			nil},
		"again":             {"POST", "s4?change=remove", nil, 200, `"done":false,"gone":true`, nil},
		"asked about again": {"GET", "s4?change=remove", nil, 200, `"gone":true`, nil},
		"a former one":      {"POST", "s4?change=promote", nil, 404, "the members are s1, s2, s3", nil},
		"an agent now":      {"POST", "a2?change=remove", nil, 404, "barque kubectl delete node a2", nil},
		"a member again":    {"POST", "s2?change=remove", nil, 200, `"done":true`, []string{"remove s2.y"}},
		"no name":           {"POST", "?change=remove", nil, 404, "no member", nil},
		"not by its ID":     {"POST", "s2.y?change=remove", nil, 404, "no member", nil},
		"refused":           {"POST", "s1?change=remove", refused, 409, "no quorum", []string{"remove s1.x"}},
		"no leader": {"POST", "s1?change=remove", raftstore.ErrUnavailable, 503, "unavailable",
			[]string{"remove s1.x"}},
		"no leader at present": {"POST", "s1?change=remove", raftstore.ErrNoLeader, 503, `"noLeader":true`,
			[]string{"remove s1.x"}},
		"no leader for long": {"POST", "s1?change=remove", &raftstore.LeaderlessError{}, 503, `"noLeader":true`,
			[]string{"remove s1.x"}},
		"begun, and then none": {"POST", "s1?change=remove",
			fmt.Errorf("%w; then: %w", raftstore.ErrUnknownOutcome, &raftstore.LeaderlessError{}), 503,
			`"unfinished":true`, []string{"remove s1.x"}},
		"recorded, and waits": {"POST", "s2?change=remove", &raftstore.PendingError{Reason: `server "s2.y" waits`},
			202, `"error":"server s2 waits","unfinished":true`, []string{"remove s2.y"}},
		"a removal taken back": {"GET", "s2?change=promote", nil, 200,
			`"steps":["the removal of s2 is taken back"],"voters":{"before":2,"after":2}`, nil},
		"begun": {"POST", "s1?change=remove", raftstore.ErrUnknownOutcome, 503, `"unfinished":true`,
			[]string{"remove s1.x"}},
		"another verb":          {"DELETE", "s2?change=remove", nil, 405, "", nil},
		"no change":             {"POST", "s2", nil, 400, "want remove, demote", nil},
		"a change of no member": {"POST", "s2?change=wipe", nil, 400, "want remove, demote", nil},
	} {
		t.Run(name, func(t *testing.T) {
			store, w := &members{err: c.err, leaves: "s2.y"}, httptest.NewRecorder()
			MembersHandler(store, others{agents: []string{"a1", "a2"}, former: []string{"s4", "a2", "s2"}}).ServeHTTP(w,
				by(clusterusers.AdminGroup, httptest.NewRequest(c.method, MembersPath+"/"+c.path, nil)))
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) || !slices.Equal(store.calls, c.calls) {
				t.Fatalf("status %d, %s, calls %q", w.Code, w.Body, store.calls)
			}
			store, w = &members{err: c.err, leaves: "s2.y"}, httptest.NewRecorder()
			MembersHandler(store, others{}).ServeHTTP(w,
				by("dev", httptest.NewRequest(c.method, MembersPath+"/"+c.path, nil)))
			if c.method != "GET" && (w.Code != http.StatusForbidden || len(store.calls) > 0) ||
				c.method == "GET" && w.Code == http.StatusForbidden {
				t.Errorf("by somebody with all of RBAC: status %d, %s, calls %q", w.Code, w.Body, store.calls)
			}
		})
	}
}

// by returns a request of a user in the group that RBAC allows.
func by(group string, r *http.Request) *http.Request {
	return r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "ann", Groups: []string{group}}))
}
