package adminapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/barque/barque/apiserver/extra"
	"github.com/barque/barque/raftstore"
)

// MembersPath, followed by a slash and a server's name, is that member of the store. GET and POST
// take the parameter "change". GET returns the change's plan; RBAC controls the right to it. POST
// makes the change and waits until it is done, for administrators only.
const MembersPath = "/barque/v1/members"

// MemberChange is a change of a server's place in the store.
type MemberChange string

const (
	RemoveServer  MemberChange = "remove"
	DemoteServer  MemberChange = "demote"
	PromoteServer MemberChange = "promote"
	LeadServer    MemberChange = "lead" // the name AnyServer lets the store choose
)

// AnyServer selects the most suitable server.
const AnyServer = "-"

// MemberAnswer is the answer to GET and POST: the change or its plan, or the reason of a refusal.
type MemberAnswer struct {
	Server string       `json:"server"`
	Change MemberChange `json:"change"`
	// Done is set if the change was made. Otherwise the answer is a plan, or Error has the reason.
	Done bool `json:"done"`
	// Gone is set if the server to remove is no member of the store any more. Nothing remains to be
	// done.
	Gone bool `json:"gone,omitempty"`
	// Steps are the servers' steps, in order.
	Steps []string `json:"steps,omitempty"`
	// Voters before and after, and how many of them may fail at once without harm.
	Voters     Span   `json:"voters"`
	MayFail    Span   `json:"mayFail"`
	Leader     string `json:"leader,omitempty"` // after the change, if known
	Error      string `json:"error,omitempty"`
	Refused    bool   `json:"refused,omitempty"` // nothing was changed
	NoSuch     bool   `json:"noSuchServer,omitempty"`
	Unfinished bool   `json:"unfinished,omitempty"` // begun and continuing, waiting, or of unknown outcome
	NoLeader   bool   `json:"noLeader,omitempty"`   // nothing was changed
}

// Span is a number before and after.
type Span struct {
	Before int `json:"before"`
	After  int `json:"after"`
}

// MemberStore is the store's interface for changes of members.
type MemberStore interface {
	Members() []raftstore.Member
	Remove(ctx context.Context, id, why string) error
	Demote(ctx context.Context, id string) error
	Promote(ctx context.Context, id string) error
	TransferLeadership(ctx context.Context, id string) error
	CheckDeparture(ctx context.Context, id string) error
	Leaving(id string) bool
}

// ErrNoMember is part of an error about a node outside the store.
var ErrNoMember = errors.New("is no member of the store")

// notAMember returns the error about a node outside the store, with the right command for it.
func notAMember(name string, agent bool, change MemberChange, members []raftstore.Member) error {
	switch {
	case agent && change == RemoveServer:
		return fmt.Errorf("%q %w but an agent: stop it, and delete its Node: barque kubectl delete node %s", name,
			ErrNoMember, name)
	case agent:
		return fmt.Errorf("%q %w but an agent, which neither votes nor leads: the members are %s", name, ErrNoMember,
			namesOf(members))
	}
	return fmt.Errorf("%q %w: the members are %s", name, ErrNoMember, namesOf(members))
}

// changeTimeout bounds the wait for a change. After half a minute the store itself reports a
// blocked change.
const changeTimeout = 45 * time.Second

// Outsiders finds servers outside the store.
type Outsiders interface {
	IsAgent(name string) bool
	// IsFormer reports whether the server was a member once.
	IsFormer(name string) bool
}

// planMember describes a change of a member, without making it.
func planMember(
	store MemberStore, outsiders Outsiders, name string, change MemberChange,
) (MemberAnswer, raftstore.Member, error) {
	a := MemberAnswer{Server: name, Change: change}
	members := store.Members()
	for _, m := range members {
		if m.Voter {
			a.Voters.Before++
		}
		if m.Leader {
			a.Leader = m.Name
		}
	}
	a.Voters.After = a.Voters.Before
	if change == LeadServer && name == AnyServer {
		a.Steps = []string{"the leader hands over to the voter that is the least behind"}
		return a.tolerance(), raftstore.Member{}, nil
	}
	i := slices.IndexFunc(members, func(m raftstore.Member) bool { return m.Name == name })
	switch {
	case i < 0 && change == RemoveServer && !outsiders.IsAgent(name) && outsiders.IsFormer(name):
		a.Gone = true // the request repeats an earlier one
		return a.tolerance(), raftstore.Member{}, nil
	case i < 0:
		return a, raftstore.Member{}, notAMember(name, outsiders.IsAgent(name), change, members)
	}
	m := members[i]
	switch {
	case change == LeadServer && !m.Leader:
		a.Steps = []string{"the leader hands over to " + name}
	case change == PromoteServer:
		if store.Leaving(m.ID) {
			a.Steps = append(a.Steps, "the removal of "+name+" is taken back")
		}
		if !m.Voter {
			a.Steps = append(a.Steps, name+" gets a vote")
			a.Voters.After++
		}
	case change == DemoteServer && m.Voter, change == RemoveServer && m.Voter:
		if m.Leader {
			a.Steps = append(a.Steps, name+" hands leadership over")
		}
		a.Steps = append(a.Steps, name+" loses its vote")
		a.Voters.After--
	case change == DemoteServer:
		a.Steps = []string{name + " stays without a vote until it is promoted"}
	}
	if change == RemoveServer {
		a.Steps = append(a.Steps, name+" is taken out of the store, for good", name+" stops, when it lives")
	}
	return a.tolerance(), m, nil
}

func namesOf(members []raftstore.Member) string {
	var names []string
	for _, m := range members {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func (a MemberAnswer) tolerance() MemberAnswer {
	a.MayFail = Span{max(0, (a.Voters.Before-1)/2), max(0, (a.Voters.After-1)/2)}
	return a
}

// changeMember makes the change, or only checks it.
func changeMember(
	ctx context.Context, store MemberStore, outsiders Outsiders, name string, change MemberChange, dryRun bool,
) (MemberAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	a, m, err := planMember(store, outsiders, name, change)
	switch {
	case err != nil, a.Gone:
	case dryRun && (change == RemoveServer || change == DemoteServer):
		err = store.CheckDeparture(ctx, m.ID)
	case dryRun:
	case change == RemoveServer:
		err = store.Remove(ctx, m.ID, "an operator removed it")
	case change == DemoteServer:
		err = store.Demote(ctx, m.ID)
	case change == PromoteServer:
		err = store.Promote(ctx, m.ID)
	case change == LeadServer:
		before := a.Leader
		if err = store.TransferLeadership(ctx, m.ID); err == nil {
			a.Leader, err = awaitLeader(ctx, store, before, m.Name)
		}
	}
	a.Done = err == nil && !dryRun && !a.Gone
	return a, err
}

const (
	// leaderPatience bounds the wait for the new leader after its campaign was requested.
	leaderPatience = 10 * time.Second
	leaderLook     = 25 * time.Millisecond
)

// awaitLeader waits until the named server leads; with an empty name, until any server but the
// former leader leads. It returns the leader's name.
func awaitLeader(ctx context.Context, store MemberStore, before, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, leaderPatience)
	defer cancel()
	ticker := time.NewTicker(leaderLook)
	defer ticker.Stop()
	leader := ""
	for {
		leader = ""
		for _, m := range store.Members() {
			if m.Leader {
				leader = m.Name
			}
		}
		if leader != "" && (leader == name || name == "" && leader != before) {
			return leader, nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return leader,
				fmt.Errorf("%w: the leader was told to hand over, and %q leads so far", raftstore.ErrUnknownOutcome,
					leader)
		}
	}
}

// MembersHandler serves MembersPath.
func MembersHandler(store MemberStore, outsiders Outsiders) http.Handler {
	return extra.MastersChange(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		change := MemberChange(r.URL.Query().Get("change"))
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodPost:
			http.Error(w, "only GET and POST are served here", http.StatusMethodNotAllowed)
			return
		case !slices.Contains([]MemberChange{RemoveServer, DemoteServer, PromoteServer, LeadServer}, change):
			http.Error(w, fmt.Sprintf("the parameter change is %q: want remove, demote, promote or lead", change),
				http.StatusBadRequest)
			return
		}
		name := strings.TrimPrefix(r.URL.Path, MembersPath+"/")
		answer, err := changeMember(r.Context(), store, outsiders, name, change, r.Method == http.MethodGet)
		status := answer.judge(err)
		answer.Error = byName(answer.Error, store.Members())
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			return // the client has gone
		}
	}))
}

// byName replaces members' IDs by their names in a message of the store.
func byName(message string, members []raftstore.Member) string {
	for _, m := range members {
		message = strings.ReplaceAll(message, strconv.Quote(m.ID), m.Name)
	}
	return message
}

// hasNoLeader reports whether a request found no leader, for long or in an election. It changed
// nothing then.
func hasNoLeader(err error) bool {
	return errors.Is(err, raftstore.ErrLeaderless) || errors.Is(err, raftstore.ErrNoLeader)
}

// judge stores the error's meaning in the answer, and returns the HTTP status for it.
func (a *MemberAnswer) judge(err error) int {
	if err == nil {
		return http.StatusOK
	}
	a.Error = err.Error()
	var refused *raftstore.RefusedError
	var pending *raftstore.PendingError
	switch {
	case errors.As(err, &pending):
		a.Unfinished = true
		return http.StatusAccepted
	case errors.Is(err, ErrNoMember):
		a.NoSuch = true
		return http.StatusNotFound
	case errors.As(err, &refused):
		a.Refused = true
		return http.StatusConflict
	case errors.Is(err, raftstore.ErrUnknownOutcome):
		a.Unfinished = true
	case hasNoLeader(err):
		a.NoLeader = true
	}
	return http.StatusServiceUnavailable
}
