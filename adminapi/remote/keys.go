package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/keyring"
)

// Keys asks for the state of the gossip keys.
func Keys(ctx context.Context, config *rest.Config) (*adminapi.KeysAnswer, error) {
	return keys(ctx, config, http.MethodGet, nil)
}

// KeysChange is a change of the gossip keys.
type KeysChange struct {
	Undo   bool // of the running rotation; false begins one
	Force  bool // skip members that are away or do not follow
	DryRun bool // only check whether it would be refused
}

// Make asks for the change.
func (k KeysChange) Make(ctx context.Context, config *rest.Config) (*adminapi.KeysAnswer, error) {
	query := url.Values{"change": {"rotate"}}
	if k.Undo {
		query.Set("change", "undo")
	}
	for name, on := range map[string]bool{"force": k.Force, "dryRun": k.DryRun} {
		if on {
			query.Set(name, "true")
		}
	}
	return keys(ctx, config, http.MethodPost, query)
}

const (
	// keysEvery is how often a command that waits asks how far a rotation is.
	keysEvery = 300 * time.Millisecond
	// keysToldAfter is the age of a step after which its missing members are printed. They are
	// printed again after five times as long.
	keysToldAfter = 2 * time.Second
)

// AwaitKeys waits for the end of the rotation, up to a timeout. It reports each step.
func AwaitKeys(
	ctx context.Context, config *rest.Config, answer *adminapi.KeysAnswer, wait time.Duration, tell func(text string),
) (*adminapi.KeysAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	told, next := keyring.AtRest, time.Time{}
	for answer.Step != keyring.AtRest {
		if answer.Step != told {
			told, next = answer.Step, time.Now().Add(keysToldAfter)
			tell(answer.Text)
		} else if time.Now().After(next) && len(answer.Waiting) > 0 {
			next = time.Now().Add(5 * keysToldAfter)
			tell("waiting for " + strings.Join(answer.Waiting, ", "))
		}
		select {
		case <-ctx.Done():
			return nil, unfinishedKeys(answer)
		case <-time.After(keysEvery):
		}
		next, err := Keys(ctx, config)
		switch {
		case err == nil:
			answer = next
		case ctx.Err() != nil:
			return nil, unfinishedKeys(answer)
		}
		// A server that does not answer may be away for a moment; the rotation continues.
	}
	return answer, nil
}

func unfinishedKeys(answer *adminapi.KeysAnswer) error {
	reason, ways := "", ""
	if len(answer.Waiting) > 0 {
		reason = ", waiting for " + strings.Join(answer.Waiting, ", ")
	}
	switch answer.Step {
	case keyring.Add, keyring.Use:
		ways = ", `barque cluster keys rotate --force` skips members that do not follow, `barque cluster keys rotate --undo` takes it back"
	case keyring.Remove:
		ways = ", `barque cluster keys rotate --force` skips members that do not follow"
	}
	return &exitcode.Error{Code: exitcode.Unfinished,
		Err: fmt.Errorf(
			"the rotation is under way (%s%s). It continues by itself; `barque cluster keys list` shows its progress%s",
			answer.Text, reason, ways)}
}

// keys asks for the keys' status, or for a change.
func keys(ctx context.Context, config *rest.Config, method string, query url.Values) (*adminapi.KeysAnswer, error) {
	client, end, err := Once(config, 20*time.Second)
	if err != nil {
		return nil, err
	}
	defer end()
	request := client.Verb(method).AbsPath(adminapi.KeysPath)
	for name, values := range query {
		request = request.Param(name, values[0])
	}
	data, err := request.DoRaw(ctx)
	answer := new(adminapi.KeysAnswer)
	if json.Unmarshal(data, answer) == nil && answer.Error != "" {
		if answer.Refused {
			return nil,
				&exitcode.Error{Code: exitcode.Refused,
					Err: fmt.Errorf("refused, nothing was changed: %s", answer.Error)}
		}
		switch {
		case answer.Unfinished:
			return nil,
				&exitcode.Error{Code: exitcode.Unfinished,
					Err: fmt.Errorf("%s; `barque cluster keys list` shows whether it was begun", answer.Error)}
		case answer.NoLeader:
			err := error(
				&exitcode.Error{Code: exitcode.NoQuorum,
					Err: fmt.Errorf("%s; see `barque cluster status` for the cause and the remedy", answer.Error)})
			if method != http.MethodGet {
				err = Unchanged(err)
			}
			return nil, err
		}
		return nil, fmt.Errorf("%s; see `barque cluster status` for the cause and the remedy", answer.Error)
	}
	if method != http.MethodGet && MaybeDone(err) {
		if StatusOf(err) != 0 {
			return nil,
				&exitcode.Error{Code: exitcode.Unfinished,
					Err: fmt.Errorf("whether it was begun is not known: %w; `barque cluster keys list` shows it",
						said(data, err))}
		}
		return nil,
			&exitcode.Error{Code: exitcode.Unfinished,
				Err: fmt.Errorf(
					"the answer of %s did not come: %w; `barque cluster keys list` shows whether it was begun",
					config.Host, err)}
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s for the gossip keys: %w", config.Host, WithAdvice(config, said(data, err)))
	}
	return answer, nil
}
