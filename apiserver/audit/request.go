package audit

import (
	"net/http"
	"strings"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Request is an answered request that does not go through the API server's chain.
type Request struct {
	User        string // "" without a proven identity
	Groups      []string
	Method      string
	Path, URI   string
	Source      string // IP address; "" of a server's own act
	UserAgent   string
	Received    time.Time
	Status      int
	Reason      string // of a refusal
	Annotations map[string]string
}

// Record records a request, if the policy records requests for non-resource URLs.
func (l *Log) Record(r Request) {
	if e := l.event(r); e != nil {
		l.ProcessEvents(e)
	}
}

// RecordAct is Record for an act of the server itself. It waits for no sink, a blocking one
// included: a disk that hangs would hold up the leader. A sink gets the acts in their order. One
// that finds its queue full, or comes after the end of Run, is lost.
func (l *Log) RecordAct(r Request) {
	if e := l.event(r); e != nil {
		for _, s := range l.sinks {
			s.acts.ProcessEvents(e)
		}
	}
}

// event returns the event of a request, or nil if the policy does not want it.
func (l *Log) event(r Request) *auditinternal.Event {
	verb := strings.ToLower(r.Method)
	attributes := authorizer.AttributesRecord{Verb: verb, Path: r.Path}
	if r.User != "" {
		attributes.User = &user.DefaultInfo{Name: r.User, Groups: r.Groups}
	}
	config := l.Policy.EvaluatePolicyRule(attributes)
	if config.Level == auditinternal.LevelNone {
		return nil
	}
	for _, stage := range config.OmitStages {
		if stage == auditinternal.StageResponseComplete {
			return nil
		}
	}
	e := &auditinternal.Event{
		Level: config.Level, AuditID: uuid.NewUUID(), Stage: auditinternal.StageResponseComplete, Verb: verb,
		RequestURI: r.URI,
		User:       authnv1.UserInfo{Username: r.User, Groups: r.Groups},
		UserAgent:  r.UserAgent, Annotations: r.Annotations,
		ResponseStatus:           &metav1.Status{Code: int32(r.Status), Status: metav1.StatusSuccess},
		RequestReceivedTimestamp: metav1.NewMicroTime(r.Received), StageTimestamp: metav1.NewMicroTime(time.Now()),
	}
	if r.Source != "" {
		e.SourceIPs = []string{r.Source}
	}
	if r.Status >= http.StatusBadRequest {
		e.ResponseStatus.Status, e.ResponseStatus.Message = metav1.StatusFailure, r.Reason
	}
	return e
}
