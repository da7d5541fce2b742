package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/internal/exitcode"
)

// Keys asks for the keys' status, or for a change.
func Keys(ctx context.Context, config *rest.Config, method string, query url.Values) (*adminapi.KeysAnswer, error) {
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
			return nil, &exitcode.Error{Code: exitcode.Refused, Err: fmt.Errorf("refused, nothing was changed: %s", answer.Error)}
		}
		switch {
		case answer.Unfinished:
			return nil, &exitcode.Error{Code: exitcode.Unfinished, Err: fmt.Errorf("%s; `barque cluster keys list` shows whether it was begun", answer.Error)}
		case answer.NoLeader:
			err := error(&exitcode.Error{Code: exitcode.NoQuorum, Err: fmt.Errorf("%s; `barque cluster status` tells why, and what to do", answer.Error)})
			if method != http.MethodGet {
				err = Unchanged(err)
			}
			return nil, err
		}
		return nil, fmt.Errorf("%s; `barque cluster status` tells why, and what to do", answer.Error)
	}
	if method != http.MethodGet && MaybeDone(err) {
		if StatusOf(err) != 0 {
			return nil, &exitcode.Error{Code: exitcode.Unfinished, Err: fmt.Errorf("whether it was begun is not known: %w; `barque cluster keys list` shows it", said(data, err))}
		}
		return nil, &exitcode.Error{Code: exitcode.Unfinished, Err: fmt.Errorf("the answer of %s did not come: %w; `barque cluster keys list` shows whether it was begun", config.Host, err)}
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s for the gossip keys: %w", config.Host, WithAdvice(config, said(data, err)))
	}
	return answer, nil
}
