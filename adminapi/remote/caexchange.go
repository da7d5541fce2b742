package remote

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/exchange"
)

// CAExchange drives the exchange of the cluster's CA, or of the key of service accounts alone, for
// an operator: it requests a change, and polls until the servers are done.
//
//	settled ──Begin──▶ spreading ──▶ issuing ──▶ settled, with another issuer
//	                       └──Undo──▶ settled, with the same one
//
// The servers continue by themselves. Force makes them skip dead nodes.
type CAExchange struct {
	Certs
	Kubeconfig KubeconfigCopy
	Tell       func(text string) // progress
}

// KubeconfigCopy is the kubeconfig of the requests, if it is a copy that no server renews. The
// exchange makes its client certificate void.
type KubeconfigCopy interface {
	// Renew reports whether this call has renewed the copy.
	Renew() bool
	// Afterwards is the user's remaining step without waiting for the end; empty for none.
	Afterwards() string
}

// Status returns the state of the exchange.
func (x *CAExchange) Status(ctx context.Context) (is exchange.Status, err error) {
	err = x.ask(ctx, http.MethodGet, adminapi.CAPath, nil, nil, &is)
	return is, err
}

// CheckNewUser returns an error in the first step of an exchange of the CA: a user's certificate of
// the CA that still issues would be void at once. A server that does not answer is no reason.
func (x *CAExchange) CheckNewUser(ctx context.Context) error {
	is, err := x.Status(ctx)
	if err != nil || !is.Spreading() || is.Accounts {
		return nil
	}
	return &exitcode.Error{Code: exitcode.Refused,
		Err: fmt.Errorf(
			"no certificate was made: the CA is exchanged since %s, and the CA before, whose new certificates do not count, issues still. "+
				"Try again in the next step, within seconds; `barque cert show` shows the step, and the nodes that it waits for", is.Since.UTC().Format(time.RFC3339))}
}

// Step is a change of the exchange. Text describes its effects.
type Step struct {
	exchange.Request
	Text string
}

// Wish is an operator's order for an exchange: to begin it, or to undo or force it.
type Wish struct {
	Accounts    bool // of the key of service accounts alone
	Undo, Force bool
	// Given is a CA to begin an exchange with. BuiltIn is for a CA that the cluster makes, though
	// it has an external one.
	Given   *exchange.Given
	BuiltIn bool
	// Joint is for one CA for all purposes, which earlier versions handle.
	Joint bool
}

// NextStep returns the step to take: to undo or force the exchange that is under way, or to begin
// one. It is nil when an exchange is under way and only to be waited for. The servers refuse it
// when the exchange is another one by then, or at another step.
func NextStep(is *exchange.Status, w Wish) (*Step, error) {
	of := clusterstatus.ExchangeOf(&exchange.Status{Accounts: w.Accounts})
	refused := func(text string, args ...any) (*Step, error) {
		return nil, &exitcode.Error{Code: exitcode.Refused, Err: fmt.Errorf("nothing was changed: "+text, args...)}
	}
	step := func(change exchange.Change, text string) (*Step, error) {
		return &Step{exchange.Request{Change: change, Seen: is.Generation}, text}, nil
	}
	switch {
	case is.UnderWay() && is.Accounts != w.Accounts:
		return refused("an exchange of %s is under way; %s", clusterstatus.ExchangeOf(is),
			clusterstatus.ExchangeWays(is))
	case (w.Undo || w.Force) && !is.UnderWay():
		return refused("no exchange of %s is under way", of)
	case w.Undo && w.Accounts:
		return step(exchange.Undo,
			"The exchange of the key of service accounts is given up. The old key stays, the new one is dropped.\n")
	case w.Undo:
		return step(exchange.Undo, "The exchange of the CA is given up. The old CA stays, the new one is dropped.\n")
	case w.Force && w.Accounts:
		return step(exchange.Force,
			"The exchange of the key of service accounts waits no more for servers that show no life. They take the new key over when they come back:\n"+lines(is.Waiting))
	case w.Force:
		return step(exchange.Force,
			"The exchange of the CA waits no more for nodes that show no life. They must join again when they come back:\n"+
				"agents with --rejoin and a new token, servers with --wipe --replace --join and a new token.\n"+
				lines(is.Waiting))
	case is.UnderWay() && (w.Given != nil || w.BuiltIn || w.Joint):
		return refused("an exchange of the CA is under way already; `barque cert rotate --ca` waits for its end")
	case is.UnderWay():
		return nil, nil
	case w.Accounts:
		return step(exchange.BeginAccounts,
			"The key that signs the tokens of service accounts is exchanged for a new one. Tokens that the old key has signed are void in two days;\n"+
				"kubelets replace those of pods within a day. Certificates and join tokens stay.\n")
	case is.External && w.Given == nil && !w.BuiltIn && !w.Joint:
		return refused("%w", exchange.ErrExternal)
	}
	begin := w.begin(is)
	begin.Seen = is.Generation
	return begin, nil
}

// begin is the step that begins an exchange of the CA.
func (w *Wish) begin(is *exchange.Status) *Step {
	const joint = "one for all purposes, which earlier versions know: a certificate for clients counts between servers as well"
	request, kind := exchange.Request{Change: exchange.Begin}, "a new one"
	switch {
	case w.Given != nil && w.Joint:
		request, kind = exchange.Request{Change: exchange.BeginExternalJoint, Given: *w.Given},
			"the one in the file, as "+joint
	case w.Given != nil:
		request, kind = exchange.Request{Change: exchange.BeginExternal, Given: *w.Given}, "the one in the file"
	case w.Joint:
		request, kind = exchange.Request{Change: exchange.BeginJoint}, joint
	case w.BuiltIn:
		request, kind = exchange.Request{Change: exchange.BeginBuiltIn}, "one that the cluster makes itself"
	}
	text := "The cluster's CA is exchanged for " + kind +
		". All nodes get new certificates; nothing is restarted. Then join tokens\n" +
		"and client certificates that were made before are void, those in copied kubeconfigs among them. Certificates of\n" +
		"users (barque user add) are void from the beginning: those people get new ones from an administrator.\n"
	if !is.Separate && !w.Joint {
		text += "The cluster has one CA for all purposes. Servers and the front proxy get CAs of their own, if all servers are known\n" +
			"to be of a version with these. From the beginning an earlier version of Barque refuses their data directories:\n" +
			"the way back of an upgrade ends. With --joint the cluster keeps one CA for all purposes.\n"
	}
	return &Step{request, text}
}

// Purposes describes the CAs that an exchange, which has just begun, brings beside that for
// clients. It is empty if these were expected: before is the status of the moment before.
func Purposes(before, begun *exchange.Status, w Wish) string {
	switch {
	case w.Joint || before.Separate:
		return ""
	case begun.Separate:
		return "Servers and the front proxy get CAs of their own. Earlier versions of Barque refuse the data directories of servers from now on.\n" +
			"If you need the way back of an upgrade, give the exchange up now (barque cert rotate --ca --undo), or exchange the CA with --joint afterwards.\n"
	}
	return "The new CA is one for clients, servers and the front proxy: not all servers are known to be of a version with a CA for each.\n" +
		"The log of the server that was asked names them. Give the exchange up now (barque cert rotate --ca --undo), and begin it again\n" +
		"when all servers are updated and seen. After a theft let it go on, and exchange the CA again then.\n"
}

func lines(waiting []string) (text string) {
	for _, who := range waiting {
		text += "  " + who + "\n"
	}
	return text
}

// Change makes the change. The answer goes into is. Servers refuse an exchange that makes the
// caller's own certificate void from the beginning, unless loseAccess is set.
func (x *CAExchange) Change(ctx context.Context, request exchange.Request, loseAccess bool, is *exchange.Status) error {
	query := map[string]string{"change": string(request.Change)}
	if request.Seen != 0 {
		query[adminapi.SeenGeneration] = strconv.FormatUint(request.Seen, 10)
	}
	if loseAccess {
		query[adminapi.LoseAccess] = "true"
	}
	var body any
	if request.Change.BringsCA() {
		body = request.Given
	}
	err := x.ask(ctx, http.MethodPost, adminapi.CAPath, query, body, is)
	switch {
	case err == nil:
		return nil
	case outcomeLost(err):
		return &exitcode.Error{Code: exitcode.Unfinished,
			Err: fmt.Errorf("whether that was done is not known: %w; `barque cert show` tells", err)}
	case StatusOf(err) == http.StatusBadRequest:
		return &exitcode.Error{Code: exitcode.Refused,
			Err: fmt.Errorf(
				"nothing was changed: %w; a server of an earlier version cannot do that, so upgrade all servers first",
				err)}
	case StatusOf(err) == http.StatusConflict, StatusOf(err) == http.StatusUnprocessableEntity:
		return &exitcode.Error{Code: exitcode.Refused, Err: err}
	}
	return Unchanged(err)
}

// exchangeEvery is the time between two questions how far the exchange is.
const exchangeEvery = time.Second

// isOfOldCA reports whether the kubeconfig is of the old CA: the servers refuse its certificate, or
// it does not trust theirs. The latter is so where the old CA may not certify the new one.
func isOfOldCA(err error) bool {
	return apierrors.IsUnauthorized(err) || errors.As(err, new(x509.UnknownAuthorityError))
}

// Await waits for the end of the exchange, from the status is. void is set if the servers refuse
// the kubeconfig: its client certificate is of the old CA.
func (x *CAExchange) Await(ctx context.Context, is exchange.Status) (void bool, err error) {
	said, before := "", is
	for is.UnderWay() {
		if text := stepText(&is); text != said {
			x.Tell(text)
			said = text
		}
		select {
		case <-ctx.Done():
			return false, x.unfinished(&is)
		case <-time.After(exchangeEvery):
		}
		now, err := x.Status(ctx)
		switch {
		case err == nil:
			before, is = is, now
		case isOfOldCA(err) && x.Kubeconfig.Renew():
			// The kubeconfig is a new one now.
		case isOfOldCA(err) && (is.Spreading() || !apierrors.IsUnauthorized(err)):
			return false,
				&exitcode.Error{Code: exitcode.Unfinished,
					Err: fmt.Errorf(
						"this kubeconfig is of the CA before and not accepted any more, so the progress of the exchange is unknown: take admin.kubeconfig from the data directory of a server; with it `barque cert rotate --ca` waits for the end: %w", err)}
		case isOfOldCA(err):
			return true, nil
		case ctx.Err() != nil:
			return false, x.unfinished(&is)
		default:
			x.Tell(fmt.Sprintf("the servers cannot be asked just now: %v", err))
		}
	}
	if is.GivenUp(&before) {
		return false,
			fmt.Errorf("the exchange of %s was given up meanwhile: the old keys stay",
				clusterstatus.ExchangeOf(&before))
	}
	return false, nil
}

func (x *CAExchange) unfinished(is *exchange.Status) error {
	return &exitcode.Error{Code: exitcode.Unfinished,
		Err: fmt.Errorf("the exchange of %s continues; `barque cert show` shows its progress. Ways on: %s%s",
			clusterstatus.ExchangeOf(is), clusterstatus.ExchangeWays(is), x.Kubeconfig.Afterwards())}
}

func stepText(is *exchange.Status) string {
	text := clusterstatus.ExchangeText(is)
	if is.Problem != "" {
		text += "; " + is.Problem
	}
	return text
}
