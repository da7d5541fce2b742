package adminapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
)

// ErrOutcomeUnknown is returned for a call without an answer, or with an answer that says so: the
// request may have taken effect.
var ErrOutcomeUnknown = errors.New("whether that was done is not known")

// CallJSON calls the server of that name. The error is ErrOutcomeUnknown if the request may have
// reached it and the answer is lost. A GET changes nothing and never returns that error.
func CallJSON(ctx context.Context, client *http.Client, method, name, url string, out any) error {
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx,
		&httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	switch {
	case err != nil && connected.Load():
		return fmt.Errorf("ask server %s: %w", name, lost(method, err))
	case err != nil:
		return fmt.Errorf("ask server %s: %w", name, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))
	switch {
	case err != nil:
		return fmt.Errorf("answer of server %s: %w", name, lost(method, err))
	case response.StatusCode == http.StatusGatewayTimeout:
		return fmt.Errorf("server %s answers %s: %w", name, response.Status,
			lost(method, errors.New(strings.TrimSpace(string(body)))))
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("server %s answers %s: %s", name, response.Status, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("answer of server %s: %w", name, lost(method, err))
	}
	return nil
}

// lost adds to the error of a lost answer that the request may have taken effect. A GET has no
// effect.
func lost(method string, err error) error {
	if method == http.MethodGet {
		return err
	}
	return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
}
