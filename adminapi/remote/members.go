package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/internal/terminal"
)

// memberCallTimeout is longer than a server takes for a change.
const memberCallTimeout = time.Minute

// ServerChange is a change of a server's place in the store.
type ServerChange struct {
	Server string // its name, or adminapi.AnyServer
	Change adminapi.MemberChange
	Called string // by the user, where Change is not the word; errors begin with it
}

// String is the user's name of the change, with the server.
func (s ServerChange) String() string {
	text := fmt.Sprintf("%s %s", cmp.Or(s.Called, string(s.Change)), s.Server)
	return strings.TrimSuffix(text, " "+adminapi.AnyServer)
}

// Plan asks a server for the change's plan.
func (s ServerChange) Plan(ctx context.Context, config *rest.Config) (*adminapi.MemberAnswer, error) {
	return memberChange(ctx, config, http.MethodGet, s.String(), s.Server, s.Change)
}

// Make asks a server to make the change, and returns when it is done.
func (s ServerChange) Make(ctx context.Context, config *rest.Config) (*adminapi.MemberAnswer, error) {
	return memberChange(ctx, config, http.MethodPost, s.String(), s.Server, s.Change)
}

// LeavingServer returns the name of the server at the configuration's address, which is to leave
// the cluster.
func LeavingServer(ctx context.Context, config *rest.Config) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, Timeout, &NoAnswerError{Within: Timeout})
	defer cancel()
	o, err := Observation(ctx, config, config.Host)
	if err != nil {
		return "",
			fmt.Errorf(
				"leave: nothing was changed: %w; to remove a server that does not answer: barque cluster remove SERVER",
				WithAdvice(config, err))
	}
	return o.From, nil
}

// WritePlan prints the effects of a change, also on the quorum.
func WritePlan(w io.Writer, p *adminapi.MemberAnswer) error {
	if len(p.Steps) == 0 {
		_, err := fmt.Fprintf(w, "Nothing is to be done: %s is as it should be.\n", p.Server)
		return err
	}
	for i, step := range p.Steps {
		fmt.Fprintf(w, "%d. %s\n", i+1, step)
	}
	if p.Voters.After != p.Voters.Before {
		mayFail := fmt.Sprintf("as before, %s may fail at once without harm", terminal.Count(p.MayFail.After))
		if p.MayFail.After != p.MayFail.Before {
			mayFail = fmt.Sprintf("%s may fail at once without harm instead of %s", terminal.Count(p.MayFail.After),
				terminal.Count(p.MayFail.Before))
		}
		fmt.Fprintf(w, "Then %s instead of %d, and %s.\n",
			terminal.Plural(p.Voters.After, "server votes", "servers vote"), p.Voters.Before, mayFail)
	}
	return nil
}

// WriteMade prints the result of a change.
func WriteMade(w io.Writer, a *adminapi.MemberAnswer) error {
	if a.Gone {
		_, err := fmt.Fprintf(w, "%s is no member of the store any more; nothing is to be done\n", a.Server)
		return err
	}
	text := map[adminapi.MemberChange]string{
		adminapi.RemoveServer:  a.Server + " was taken out of the store; if it runs, it stops now",
		adminapi.DemoteServer:  a.Server + " has no vote any more, until it is promoted",
		adminapi.PromoteServer: a.Server + " has a vote",
		adminapi.LeadServer:    a.Leader + " leads",
	}[a.Change]
	_, err := fmt.Fprintln(w, text)
	return err
}

// memberChange asks a server to make a change, or, with GET, for its plan. Errors begin with the
// user's name of the change.
func memberChange(
	ctx context.Context, config *rest.Config, method, what, name string, change adminapi.MemberChange,
) (*adminapi.MemberAnswer, error) {
	client, end, err := Once(config, memberCallTimeout)
	if err != nil {
		return nil, err
	}
	defer end()
	data, err := client.Verb(method).AbsPath(adminapi.MembersPath, name).Param("change", string(change)).DoRaw(ctx)
	answer := new(adminapi.MemberAnswer)
	if json.Unmarshal(data, answer) == nil && answer.Change != "" {
		switch {
		case answer.NoSuch:
			return nil, &exitcode.Error{Code: exitcode.Usage, Err: fmt.Errorf("%s: %s", what, answer.Error)}
		case answer.Refused:
			return nil,
				&exitcode.Error{Code: exitcode.Refused,
					Err: fmt.Errorf("%s: refused, nothing was changed: %s", what, answer.Error)}
		case answer.Unfinished:
			return nil,
				&exitcode.Error{Code: exitcode.Unfinished,
					Err: fmt.Errorf("%s: %s; %s", what, answer.Error, whereToLook(change))}
		case answer.NoLeader:
			return nil,
				&exitcode.Error{Code: exitcode.NoQuorum,
					Err: fmt.Errorf(
						"%s: nothing was changed: %s; see `barque cluster status` for the cause and the remedy", what,
						answer.Error)}
		case answer.Error != "":
			return nil,
				fmt.Errorf("%s: %s; see `barque cluster status` for the cause and the remedy", what, answer.Error)
		}
	}
	sent := method != http.MethodGet && MaybeDone(err)
	switch {
	case err == nil:
		return answer, nil
	case sent && ctx.Err() != nil:
		return nil,
			&exitcode.Error{Code: exitcode.Unfinished,
				Err: fmt.Errorf("%s: interrupted; the servers finish the change: %s", what, whereToLook(change))}
	case sent && StatusOf(err) != 0:
		return nil,
			&exitcode.Error{Code: exitcode.Unfinished,
				Err: fmt.Errorf("%s: whether it was done is not known: %w; %s", what, said(data, err),
					whereToLook(change))}
	case sent:
		return nil,
			&exitcode.Error{Code: exitcode.Unfinished,
				Err: fmt.Errorf("%s: the answer of %s did not come: %w; %s", what, config.Host, err,
					whereToLook(change))}
	case ctx.Err() != nil:
		return nil,
			&exitcode.Error{Code: exitcode.Interrupted, Err: fmt.Errorf("%s: interrupted; nothing was changed", what)}
	}
	return nil, fmt.Errorf("%s: ask %s: %w", what, config.Host, WithAdvice(config, said(data, err)))
}

// whereToLook names the command that shows whether a change was made.
func whereToLook(change adminapi.MemberChange) string {
	if change == adminapi.LeadServer {
		return "`barque cluster status` shows the leader"
	}
	return "`barque cluster members` shows whether it was done"
}
