package rawlist

import (
	"context"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// Encoding is an encoding of lists.
type Encoding uint8

// The encodings that a List can be written in without its objects.
const (
	None Encoding = iota
	Protobuf
	JSON
)

// wanted are the forms that the client of a request accepts.
type wanted struct {
	encoding Encoding
	version  schema.GroupVersion
	response *response // nil where a List cannot take the place of the written list
}

type (
	wantedKey struct{}
	listKey   struct{}
)

// Handler notes in the context of each list request how its response will be encoded. It stands
// behind the filters that parse the request and choose its audit level.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want := want(r)
		if want.encoding == None {
			next.ServeHTTP(w, r)
			return
		}
		wanted, answer := want, w
		if want.encoding == JSON {
			wanted.response = &response{ResponseWriter: w, request: r}
			answer = responsewriter.WrapForHTTP1Or2(wanted.response)
		}
		next.ServeHTTP(answer, r.WithContext(context.WithValue(r.Context(), wantedKey{}, wanted)))
		if wanted.response != nil && wanted.response.again() {
			next.ServeHTTP(w, r)
		}
	})
}

// want foretells the encoding of the response. Where it errs, a List is encoded in the plain way.
func want(r *http.Request) wanted {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest || info.Verb != "list" || info.Subresource != "" {
		return wanted{}
	}
	accept := r.Header.Get("Accept")
	if strings.Contains(accept, ";") || strings.Contains(r.URL.RawQuery, "pretty") {
		return wanted{} // a table, metadata, other preferences than the order, or indented
	}
	// The audit log gets an object, from which it may take parts out.
	if a := audit.AuditContextFrom(r.Context()); a != nil &&
		!a.GetEventLevel().Less(auditinternal.LevelRequestResponse) {
		return wanted{}
	}
	first, _, _ := strings.Cut(accept, ",")
	want := wanted{version: schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}}
	switch strings.TrimSpace(first) {
	case runtime.ContentTypeProtobuf:
		want.encoding = Protobuf
	case runtime.ContentTypeJSON, "*/*", "":
		if !forPeople(r.UserAgent()) {
			want.encoding = JSON
		}
	}
	return want
}

// forPeople reports whether the server indents JSON for a client because of its name.
func forPeople(agent string) bool {
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") ||
		strings.HasPrefix(agent, "Mozilla/5.0")
}

// Start lets the storage that is called with the returned context fill a List instead of the list
// that it is given. The List is nil when the client takes none.
func Start(ctx context.Context) (context.Context, *List) {
	want, ok := ctx.Value(wantedKey{}).(wanted)
	if !ok {
		return ctx, nil
	}
	l := &List{wanted: want}
	return context.WithValue(ctx, listKey{}, l), l
}

// From returns the List that Start has put into the context, nil if there is none.
func From(ctx context.Context) *List {
	l, _ := ctx.Value(listKey{}).(*List)
	return l
}
