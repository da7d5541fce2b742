package auditlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Path answers a GET with the Answer for the Query in its parameters, for members of system:masters
// only. The parameter "on" names the server whose log is searched.
const Path = "/barque/v1/audit"

// MaxEvents bounds the limit of a query.
const MaxEvents = 10000

// Query selects events. Empty fields select all.
type Query struct {
	Since     time.Time
	User      string // also an impersonated one
	Verb      string
	Resource  string // such as pods, deployments.apps or pods/exec
	Namespace string
	Name      string // of the object
	Limit     int    // the number of the newest events
}

// verbs are those of requests in the log: of objects, of other paths, and of the acts of servers.
var verbs = []string{
	"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection",
	"post", "put", "head", "options", "connect",
}

// Check is the error of a query that no event can meet.
func (q Query) Check() error {
	if q.Verb != "" && !slices.Contains(verbs, q.Verb) {
		return fmt.Errorf("verb %q: no request has it; want one of %s", q.Verb, strings.Join(verbs, ", "))
	}
	return nil
}

// Values are the parameters of a request.
func (q Query) Values() url.Values {
	v := url.Values{"since": {q.Since.UTC().Format(time.RFC3339Nano)}, "limit": {strconv.Itoa(q.Limit)}}
	for name, text := range q.texts() {
		if *text != "" {
			v.Set(name, *text)
		}
	}
	return v
}

func (q *Query) texts() map[string]*string {
	return map[string]*string{"user": &q.User, "verb": &q.Verb, "resource": &q.Resource, "namespace": &q.Namespace,
		"name": &q.Name}
}

// Parse reads the parameters of a request.
func Parse(v url.Values) (q Query, err error) {
	if q.Since, err = time.Parse(time.RFC3339Nano, v.Get("since")); err != nil {
		return q, fmt.Errorf("since: %w", err)
	}
	q.Limit, err = strconv.Atoi(v.Get("limit"))
	if err != nil || q.Limit < 1 || q.Limit > MaxEvents {
		return q, fmt.Errorf("limit %q: want 1 to %d", v.Get("limit"), MaxEvents)
	}
	for name, text := range q.texts() {
		*text = v.Get(name)
	}
	return q, nil
}

// seen are the fields of an event that a query looks at.
type seen struct {
	Verb           string    `json:"verb"`
	StageTimestamp time.Time `json:"stageTimestamp"`
	User           struct {
		Username string `json:"username"`
	} `json:"user"`
	ImpersonatedUser struct {
		Username string `json:"username"`
	} `json:"impersonatedUser"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		APIGroup    string `json:"apiGroup"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
}

// matches reports whether the query selects the event.
func (q *Query) matches(e *seen) bool {
	o := &e.ObjectRef
	return !e.StageTimestamp.Before(q.Since) &&
		(q.User == "" || q.User == e.User.Username || q.User == e.ImpersonatedUser.Username) &&
		(q.Verb == "" || q.Verb == e.Verb) &&
		(q.Namespace == "" || q.Namespace == o.Namespace) &&
		(q.Name == "" || q.Name == o.Name) &&
		(q.Resource == "" || q.Resource == o.Resource || q.Resource == o.Resource+"."+o.APIGroup ||
			q.Resource == o.Resource+"/"+o.Subresource)
}

// words are texts that every line of a selected event has. Most lines are passed over by them.
func (q *Query) words() (out [][]byte) {
	for field, value := range map[string]string{"username": q.User, "verb": q.Verb, "namespace": q.Namespace,
		"name": q.Name} {
		if value == "" {
			continue
		}
		text, err := json.Marshal(value)
		if err != nil || bytes.IndexByte(text, '\\') >= 0 { // it may be written in another way
			continue
		}
		out = append(out, append([]byte(`"`+field+`":`), text...))
	}
	return out
}
