package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/internal/exitcode"
)

// memberCallTimeout is longer than a server takes for a change.
const memberCallTimeout = time.Minute

// MemberChange asks a server to make a change, or, with GET, what it would do. Errors begin with
// what the user calls it.
func MemberChange(ctx context.Context, config *rest.Config, method, what, name string, change adminapi.MemberChange) (*adminapi.MemberAnswer, error) {
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
			return nil, &exitcode.Error{Code: exitcode.Refused, Err: fmt.Errorf("%s: refused, nothing was changed: %s", what, answer.Error)}
		case answer.Unfinished:
			return nil, &exitcode.Error{Code: exitcode.Unfinished, Err: fmt.Errorf("%s: %s; %s", what, answer.Error, whereToLook(change))}
		case answer.NoLeader:
			return nil, &exitcode.Error{Code: exitcode.NoQuorum, Err: fmt.Errorf("%s: nothing was changed: %s; `barque cluster status` tells why, and what to do", what, answer.Error)}
		case answer.Error != "":
			return nil, fmt.Errorf("%s: %s; `barque cluster status` tells why, and what to do", what, answer.Error)
		}
	}
	sent := method != http.MethodGet && MaybeDone(err)
	switch {
	case err == nil:
		return answer, nil
	case sent && ctx.Err() != nil:
		return nil, &exitcode.Error{Code: exitcode.Unfinished, Err: fmt.Errorf("%s: interrupted; the servers finish what was begun: %s", what, whereToLook(change))}
	case sent && StatusOf(err) != 0:
		return nil, &exitcode.Error{Code: exitcode.Unfinished, Err: fmt.Errorf("%s: whether it was done is not known: %w; %s", what, said(data, err), whereToLook(change))}
	case sent:
		return nil, &exitcode.Error{Code: exitcode.Unfinished, Err: fmt.Errorf("%s: the answer of %s did not come: %w; %s", what, config.Host, err, whereToLook(change))}
	case ctx.Err() != nil:
		return nil, &exitcode.Error{Code: exitcode.Interrupted, Err: fmt.Errorf("%s: interrupted; nothing was changed", what)}
	}
	return nil, fmt.Errorf("%s: ask %s: %w", what, config.Host, WithAdvice(config, said(data, err)))
}

// whereToLook tells what shows whether a change was made.
func whereToLook(change adminapi.MemberChange) string {
	if change == adminapi.LeadServer {
		return "`barque cluster status` shows who leads"
	}
	return "`barque cluster members` shows whether it was done"
}
