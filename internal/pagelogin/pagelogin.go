// Package pagelogin has the names by which the page at /ui logs in. The API server and the room of
// operators share them.
//
// A session is a log-in of the page: a bearer token that stands for a user's client certificate. A
// link is its beginning: a code in a URL, good once and for a short time, that opens a session.
package pagelogin

import (
	"errors"
	"strings"
)

// ErrUnknown is returned for a session or a link that has ended or was never made.
var ErrUnknown = errors.New("this log-in of the page has ended: open another one with 'barque ui'")

// ErrLookup is returned when the store of the sessions does not answer.
var ErrLookup = errors.New("the log-ins of the page cannot be read now")

// The bearer tokens. The secret follows.
const (
	SessionPrefix = "barque-session."
	LinkPrefix    = "barque-link."
)

// Is reports whether a bearer token is a session or a link.
func Is(token string) bool {
	return strings.HasPrefix(token, SessionPrefix) || strings.HasPrefix(token, LinkPrefix)
}

// The keys of the user's extra values. Each has the ID of the session or of the link. They only
// restrict: a user with one of them has fewer rights.
const (
	SessionExtra = "page.barque.io/session"
	LinkExtra    = "page.barque.io/link"
)

// The paths of the API. A user with a certificate makes a link by a POST to LinkPath. A POST to
// SessionPath with a link, or with a certificate, opens a session. A GET describes the caller, and
// a DELETE ends the caller's session. SessionsPath is for administrators: GET lists the sessions,
// and DELETE ends those of the parameters id or user.
const (
	LinkPath     = "/barque/v1/page/link"
	SessionPath  = "/barque/v1/page/session"
	SessionsPath = "/barque/v1/page/sessions"
)

// HistoryPath answers with a server's metrics of the last hour, subject to RBAC.
const HistoryPath = "/barque/v1/page/history"
