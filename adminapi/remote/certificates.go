package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/internal/exitcode"
)

// outcomeLost reports whether a failed write may have taken effect.
func outcomeLost(err error) bool {
	var asked *refusedCall
	return errors.As(err, &asked) && MaybeDone(err)
}

// StatusOf is the HTTP status of the answer; 0 without an answer.
func StatusOf(err error) int {
	var refused *RefusalError
	if errors.As(err, &refused) {
		return refused.Status
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return 0
	}
	return int(status.Status().Code)
}

// refusedCall is a refusal with a message for people and an error for programs.
type refusedCall struct {
	Text string
	Err  error
}

func (e *refusedCall) Error() string { return e.Text }
func (e *refusedCall) Unwrap() error { return e.Err }

// certificates asks a server for JSON about certificates and CAs, or to change something there.
func certificates(
	ctx context.Context, config *rest.Config, method, path string, params map[string]string, body, out any,
) error {
	client, end, err := Once(config, 15*time.Second)
	if err != nil {
		return err
	}
	defer end()
	request := client.Verb(method).AbsPath(path)
	for name, value := range params {
		request = request.Param(name, value)
	}
	if body != nil {
		content, err := json.Marshal(body)
		if err != nil {
			return err
		}
		request = request.SetHeader("Content-Type", "application/json").Body(content)
	}
	data, err := request.DoRaw(ctx)
	if err != nil {
		text := strings.TrimSpace(string(data))
		answered := said(data, err)
		switch {
		case text == "" || strings.HasPrefix(text, "{"):
			text = WithAdvice(config, answered).Error()
		case StatusOf(err) == http.StatusServiceUnavailable:
			text += "; see `barque cluster status` for the cause and the remedy"
		}
		err := error(&refusedCall{fmt.Sprintf("ask %s: %s", config.Host, text), err})
		if NoLeader(answered) {
			return &exitcode.Error{Code: exitcode.NoQuorum, Err: err}
		}
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("answer of %s: %w", config.Host, err)
	}
	return nil
}
