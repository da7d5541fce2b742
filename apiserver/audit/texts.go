package audit

import (
	"iter"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/client-go/util/flowcontrol"
)

// A request may have a target and headers of a megabyte, also one of a stranger. An event keeps
// this much of each text, and so many of each list. Events could replace all others in the files
// otherwise, in spite of the limit on their number.
const (
	maxText = 4 << 10
	maxList = 32
	// cutMark ends a text that was cut, as upstream ends a User-Agent.
	cutMark = "...TRUNCATED"
)

// bounded returns an event whose texts are no longer than maxText: a copy, if one is. Objects of
// requests and answers stay: --audit-log-truncate-enabled is for these.
func bounded(e *auditinternal.Event) *auditinternal.Event {
	if fits(e) {
		return e
	}
	e = e.DeepCopy()
	e.SourceIPs = e.SourceIPs[:min(len(e.SourceIPs), maxList)]
	if d := details(e); d != nil {
		d.Causes = d.Causes[:min(len(d.Causes), maxList)]
	}
	for text := range texts(e) {
		*text = cut(*text)
	}
	for key, value := range e.Annotations {
		e.Annotations[key] = cut(value)
	}
	return e
}

func fits(e *auditinternal.Event) bool {
	if len(e.SourceIPs) > maxList {
		return false
	}
	if d := details(e); d != nil && len(d.Causes) > maxList {
		return false
	}
	for text := range texts(e) {
		if len(*text) > maxText {
			return false
		}
	}
	for _, value := range e.Annotations {
		if len(value) > maxText {
			return false
		}
	}
	return true
}

// cut shortens a text at the beginning of a rune.
func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	end := maxText - len(cutMark)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return strings.Clone(text[:end]) + cutMark // the whole is not kept
}

func details(e *auditinternal.Event) *metav1.StatusDetails {
	if e.ResponseStatus == nil {
		return nil
	}
	return e.ResponseStatus.Details
}

// texts are those of an event that the request has, or an answer repeats, without annotations. The
// caller's own name and groups are not among them: an authenticator vouches for these.
func texts(e *auditinternal.Event) iter.Seq[*string] {
	return func(yield func(*string) bool) {
		all := func(texts ...*string) bool {
			for _, text := range texts {
				if !yield(text) {
					return false
				}
			}
			return true
		}
		if !all(&e.RequestURI, &e.Verb, &e.UserAgent) {
			return
		}
		for i := range e.SourceIPs {
			if !yield(&e.SourceIPs[i]) {
				return
			}
		}
		if o := e.ObjectRef; o != nil && !all(&o.Resource, &o.Namespace, &o.Name, (*string)(&o.UID), &o.APIGroup,
			&o.APIVersion, &o.ResourceVersion, &o.Subresource) {
			return
		}
		if s := e.ResponseStatus; s != nil && !all(&s.Status, &s.Message, (*string)(&s.Reason)) {
			return
		}
		d := details(e)
		if d == nil || !all(&d.Name, &d.Group, &d.Kind, (*string)(&d.UID)) {
			return
		}
		for i := range d.Causes {
			if c := &d.Causes[i]; !all((*string)(&c.Type), &c.Message, &c.Field) {
				return
			}
		}
	}
}

// sizeOf returns about how many bytes of memory an event takes.
func sizeOf(e *auditinternal.Event) int {
	n := eventBytes
	for text := range texts(e) {
		n += len(*text)
	}
	for key, value := range e.Annotations {
		n += len(key) + len(value)
	}
	if e.RequestObject != nil {
		n += len(e.RequestObject.Raw)
	}
	if e.ResponseObject != nil {
		n += len(e.ResponseObject.Raw)
	}
	return n + sizeOfUser(&e.User) + sizeOfUser(e.ImpersonatedUser)
}

func sizeOfUser(u *authenticationv1.UserInfo) int {
	if u == nil {
		return 0
	}
	n := len(u.Username) + len(u.UID)
	for _, group := range u.Groups {
		n += len(group)
	}
	for key, values := range u.Extra {
		n += len(key)
		for _, value := range values {
			n += len(value)
		}
	}
	return n
}

// limit bounds the events of one kind of caller.
type limit struct {
	events flowcontrol.PassiveRateLimiter
	bytes  *rate.Limiter
}

// newLimit returns a limit of so many events a second, and at once. They have limitRate bytes a
// second as well, and limitBurst at once.
func newLimit(each float32, burst int) *limit {
	return &limit{flowcontrol.NewTokenBucketPassiveRateLimiter(each, burst), rate.NewLimiter(limitRate, limitBurst)}
}

const (
	limitRate  = 4 << 10
	limitBurst = 4 << 20
	// escaped is by how much a text is longer in JSON, at most.
	escaped = 6
)

// takes reports whether an event is within the limit.
func (l *limit) takes(e *auditinternal.Event) bool {
	return l.events.TryAccept() && l.bytes.AllowN(time.Now(), min(escaped*(sizeOf(e)-eventBytes)+lineBytes, limitBurst))
}

// lineBytes is about the length of an event in a file without its texts.
const lineBytes = 512
