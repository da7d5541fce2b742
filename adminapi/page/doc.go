// Package page serves the page at /ui: its files, its log-ins, and the metrics of the last hour.
//
// The page is a program in the browser. It reads the cluster by the API alone, with the rights of
// its user. So this package has nothing of what it shows but the metrics, which no API keeps.
//
// A log-in is a session: a bearer token that stands for the user's client certificate, for half a
// day at most. The store has the certificate and a hash of the token, so every server knows the
// session, and nobody can read a token from a backup. Package apiserver/pageauth authenticates the
// token, and restricts it to reading.
package page
