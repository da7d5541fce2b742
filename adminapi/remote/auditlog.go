package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/auditlog"
	"github.com/barque/barque/membership/acts"
)

// AuditEvent is an event with the server whose log has it.
type AuditEvent struct {
	Server string `json:"server"`
	auditv1.Event
}

// AuditEvents are the events of all servers, in the order of their time.
type AuditEvents struct {
	Events []AuditEvent `json:"events"`
	// Left is, by server, why selected events are missing. Silent is why a server has not answered.
	Left   map[string]string `json:"left,omitempty"`
	Silent map[string]string `json:"silent,omitempty"`
}

// AuditServer is a server to ask, through the first of the hosts that answers.
type AuditServer struct {
	Name  string
	Hosts []string
}

// Audit searches the audit logs of the servers.
func Audit(ctx context.Context, config *rest.Config, servers []AuditServer, q auditlog.Query) *AuditEvents {
	all := &AuditEvents{Events: []AuditEvent{}, Left: map[string]string{}, Silent: map[string]string{}}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, s := range servers {
		asking.Go(func() {
			answer, err := auditOf(ctx, config, s, q)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				all.Silent[s.Name] = err.Error()
				return
			}
			all.add(answer)
		})
	}
	asking.Wait()
	slices.SortStableFunc(all.Events,
		func(a, b AuditEvent) int { return a.StageTimestamp.Compare(b.StageTimestamp.Time) })
	if n := len(all.Events) - q.Limit; n > 0 {
		all.Events = all.Events[n:]
		for _, s := range servers {
			if all.Silent[s.Name] == "" {
				all.Left[s.Name] = "there are more, older ones"
			}
		}
	}
	return all
}

func (a *AuditEvents) add(answer *auditlog.Answer) {
	bad := answer.Unreadable
	for _, raw := range answer.Events {
		e := AuditEvent{Server: answer.Server}
		if json.Unmarshal(raw, &e.Event) != nil {
			bad++
			continue
		}
		a.Events = append(a.Events, e)
	}
	var left []string
	if answer.Left != "" {
		left = append(left, answer.Left)
	}
	if bad > 0 {
		left = append(left, fmt.Sprintf("%d lines are no events", bad))
	}
	if len(left) > 0 {
		a.Left[answer.Server] = strings.Join(left, "; ")
	}
}

// auditOf asks one server, through one host after the other.
func auditOf(ctx context.Context, config *rest.Config, s AuditServer, q auditlog.Query) (*auditlog.Answer, error) {
	values := q.Values()
	values.Set(adminapi.RelayParameter, s.Name)
	var all error
	for _, host := range s.Hosts {
		ctx, cancel := context.WithTimeoutCause(ctx, Timeout, &NoAnswerError{Timeout})
		answer := new(auditlog.Answer)
		err := GetJSON(ctx, config, host, auditlog.Path+"?"+values.Encode(), answer)
		cancel()
		if err == nil {
			return answer, nil
		}
		all = errors.Join(all, WithAdvice(config, fmt.Errorf("%s: %w", host, err)))
		var refused *RefusalError
		if errors.As(err, &refused) && refused.Status < 500 {
			break // the others would refuse as well
		}
	}
	return nil, all
}

// Write writes the events in a table.
func (a *AuditEvents) Write(w io.Writer) error {
	fmt.Fprintln(w, "TIME\tSERVER\tUSER\tVERB\tOBJECT\tANSWER\tFROM")
	for i := range a.Events {
		e := &a.Events[i]
		who := orDash(e.User.Username)
		if e.ImpersonatedUser != nil {
			who += " as " + e.ImpersonatedUser.Username
		}
		answer := "-"
		if e.ResponseStatus != nil {
			answer = strconv.Itoa(int(e.ResponseStatus.Code))
		}
		if e.Stage != auditv1.StageResponseComplete {
			answer += " " + string(e.Stage)
		}
		if _, err := fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.StageTimestamp.UTC().Format(time.RFC3339),
			e.Server, who, e.Verb,
			objectOf(&e.Event), answer, orDash(strings.Join(e.SourceIPs, ","))); err != nil {
			return err
		}
	}
	return nil
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// objectOf is the object of a request, or its path with the act that it stands for. A request for a
// collection has no name.
func objectOf(e *auditv1.Event) string {
	o := e.ObjectRef
	if o == nil {
		// The query says which change an operator wants.
		return strings.TrimSpace(e.RequestURI + " " + acts.Text(e.Annotations))
	}
	text := o.Resource
	if o.APIGroup != "" {
		text += "." + o.APIGroup
	}
	if o.Subresource != "" {
		text += "/" + o.Subresource
	}
	if o.Name != "" {
		text += " " + o.Name
	}
	if o.Namespace != "" {
		text += " in " + o.Namespace
	}
	return text
}

// Err returns the error of a command that has printed the events: it names the servers whose logs
// are missing.
func (a *AuditEvents) Err() error {
	var errs []error
	for name, why := range a.Silent {
		errs = append(errs, fmt.Errorf("the log of server %s is missing here: %s", name, why))
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}
