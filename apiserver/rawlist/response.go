package rawlist

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// response puts a List in the place of the list without items that a handler writes. It is for
// custom resources: their handler copies each object of a list deeply before it encodes it, so that
// no list can write itself there. What the handler counts as the size of its response is that of
// the list without items.
type response struct {
	http.ResponseWriter
	request *http.Request
	list    *List // nil for what is written as it comes
	status  int   // of what is kept
	empty   bytes.Buffer
}

var _ responsewriter.UserProvidedDecorator = (*response)(nil)

// Respond makes a List the answer of its request, if a storage has filled it and nothing else is
// to be sent. The handler is to write the list without items.
func (l *List) Respond() {
	if l != nil && l.list != nil && l.response != nil {
		l.response.list = l
	}
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (r *response) WriteHeader(status int) {
	if r.list == nil {
		r.ResponseWriter.WriteHeader(status)
	} else if r.status == 0 {
		r.status = status
	}
}

// Write implements http.ResponseWriter.
func (r *response) Write(p []byte) (int, error) {
	if r.list == nil {
		return r.ResponseWriter.Write(p)
	}
	return r.empty.Write(p)
}

// finish writes the List, or else what was kept instead: the handler may have failed.
func (r *response) finish() {
	switch {
	case r.list == nil:
	case r.status == http.StatusOK || r.status == 0:
		responsewriters.SerializeObject(runtime.ContentTypeJSON, &within{&r.empty}, r.ResponseWriter, r.request, http.StatusOK, r.list)
	default:
		r.ResponseWriter.WriteHeader(r.status)
		_, _ = r.ResponseWriter.Write(r.empty.Bytes()) // to a client that may be gone
	}
}

// within is an encoder that gives a list without items as it was encoded already.
type within struct{ empty *bytes.Buffer }

// Identifier implements runtime.Encoder.
func (*within) Identifier() runtime.Identifier { return "barque-list-of-documents" }

// Encode implements runtime.Encoder. It encodes anything else, such as an error, as JSON.
func (e *within) Encode(obj runtime.Object, w io.Writer) error {
	l, ok := obj.(*List)
	if !ok {
		return json.NewEncoder(w).Encode(obj)
	}
	if _, ok := l.format.placeOfItems(e.empty.Bytes()); !ok {
		return errors.New("a list of custom resources was not encoded as expected, so that they cannot be put into it")
	}
	return l.CacheEncode(e.Identifier(), func(_ runtime.Object, w io.Writer) error {
		_, err := w.Write(e.empty.Bytes())
		return err
	}, w)
}
