package rawlist

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// response writes a List in the place of the list without items that a handler writes. It is for
// custom resources: their handler copies each object of a list deeply before it encodes it, so that
// no list can write itself there. The List is written while the handler writes, so that it counts
// in the request's duration. The handler's size of the response is that of the list without items.
type response struct {
	http.ResponseWriter
	request *http.Request
	header  http.Header // as it was before the handler wrote
	list    *List       // nil for writes that pass unchanged
	state   responseState
}

type responseState int

const (
	responseOpen  responseState = iota // nothing was written
	responseSent                       // the List was
	responseAgain                      // the handler is to answer once more, with all objects
)

var _ responsewriter.UserProvidedDecorator = (*response)(nil)

// Respond makes a List the answer of its request, if a storage has filled it. The handler is to
// write the list without items. A list for which no List was filled is the handler's.
func (l *List) Respond() {
	if l == nil || l.response == nil {
		return
	}
	l.response.list = nil
	if l.list != nil {
		l.response.list, l.response.header = l, l.response.Header().Clone()
	}
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (r *response) WriteHeader(status int) {
	switch {
	case r.list == nil:
		r.ResponseWriter.WriteHeader(status)
	case r.state != responseOpen:
	case status != http.StatusOK:
		r.list = nil // the handler has failed
		r.ResponseWriter.WriteHeader(status)
	default:
		r.state = r.send()
	}
}

// Write implements http.ResponseWriter.
func (r *response) Write(p []byte) (int, error) {
	if r.list != nil && r.state == responseOpen {
		r.WriteHeader(http.StatusOK)
	}
	if r.list == nil {
		return r.ResponseWriter.Write(p)
	}
	return len(p), nil // of the list without items
}

// send writes the List if the handler is about to write JSON, as was foretold.
func (r *response) send() responseState {
	var empty bytes.Buffer
	err := jsonserializer.NewSerializerWithOptions(nil, nil, nil,
		jsonserializer.SerializerOptions{StreamingCollectionsEncoding: true}).Encode(r.list.list, &empty)
	if err != nil || r.Header().Get("Content-Type") != runtime.ContentTypeJSON {
		return responseAgain
	}
	if _, ok := r.list.format.placeOfItems(empty.Bytes()); !ok {
		return responseAgain
	}
	responsewriters.SerializeObject(runtime.ContentTypeJSON, within(empty.Bytes()), r.ResponseWriter, r.request,
		http.StatusOK, r.list)
	return responseSent
}

// again reports whether the handler is to answer once more, and prepares for that: nothing
// was sent.
func (r *response) again() bool {
	if r.state != responseAgain {
		return false
	}
	header := r.Header()
	clear(header)
	maps.Copy(header, r.header)
	return true
}

// within is an encoder that gives a list without items as it was encoded already.
type within []byte

// Identifier implements runtime.Encoder.
func (within) Identifier() runtime.Identifier { return "barque-list-of-documents" }

// Encode implements runtime.Encoder. It encodes any other object, such as an error, as JSON.
func (e within) Encode(obj runtime.Object, w io.Writer) error {
	l, ok := obj.(*List)
	if !ok {
		return json.NewEncoder(w).Encode(obj)
	}
	return l.CacheEncode(e.Identifier(), func(_ runtime.Object, w io.Writer) error {
		_, err := w.Write(e)
		return err
	}, w)
}
