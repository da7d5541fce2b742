package objectcache

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"weak"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/metrics/testutil"
)

// upperCase is an Encoder of one form.
type upperCase struct{}

func (upperCase) Encode(
	form apiruntime.Identifier, _ func(apiruntime.Object, io.Writer) error, of Stored,
) ([]byte, bool) {
	return bytes.ToUpper(of.Value), form == "upper"
}

// eventOf encodes as the encoder of watch events does, with another one for the object.
func eventOf(form apiruntime.Identifier) func(apiruntime.Object, io.Writer) error {
	return func(obj apiruntime.Object, w io.Writer) error {
		_, _ = io.WriteString(w, "event ")
		if cacheable, ok := obj.(apiruntime.CacheableObject); ok {
			return cacheable.CacheEncode(form, encodeName, w)
		}
		return encodeName(obj, w)
	}
}

func encoded(
	t *testing.T, o *Object, form apiruntime.Identifier, encode func(apiruntime.Object, io.Writer) error,
) string {
	t.Helper()
	var out bytes.Buffer
	if err := o.CacheEncode(form, encode, &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestWhatIsStoredIsNotDecoded: an object is decoded once, at the first use of more than its stored
// bytes, and the result is shared from then on.
func TestWhatIsStoredIsNotDecoded(t *testing.T) {
	space := New(1 << 20).Space()
	var decodes atomic.Int32
	decode := func(of Stored) (apiruntime.Object, error) {
		decodes.Add(1)
		return decodeMap(of)
	}
	of := Stored{Key: "a", Value: []byte("value"), Revision: 1}
	o := space.Defer(of, decode, upperCase{})
	if again := space.Defer(of, decode, upperCase{}); again != o {
		t.Error("those who ask for the same bytes do not share an object")
	}
	fails := func(apiruntime.Object, io.Writer) error { return errors.New("it was not to be encoded") }
	if got := encoded(t, o, eventForm+"upper", eventOf("upper")); got != "event VALUE" {
		t.Errorf("an event of what is stored: %q", got)
	}
	if got := encoded(t, o, "upper", fails); got != "VALUE" {
		t.Errorf("what is stored: %q", got)
	}
	before := o.cost
	if kind := o.GetObjectKind().GroupVersionKind(); !kind.Empty() || space.Peek(of) != nil || decodes.Load() != 0 {
		t.Fatalf("it is shown, %v, or was decoded %d times", kind, decodes.Load())
	}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if got := encoded(t, o, eventForm+"name", eventOf("name")); got != "event a" {
				t.Errorf("an event of what is decoded: %q", got)
			}
			if obj, err := o.Decoded(); err != nil || obj.(*corev1.ConfigMap).Data["value"] != "value" {
				t.Errorf("decoded: %v, %v", obj, err)
			}
		})
	}
	all.Wait()
	if got := encoded(t, o, "name", encodeName); got != "a" {
		t.Errorf("decoded and encoded: %q", got)
	}
	got, err := space.Get(of, decode)
	if err != nil || got != o || space.Peek(of) != o || o.GetObjectMeta().GetName() != "a" || decodes.Load() != 1 {
		t.Errorf("got %v, %v after %d decodings", got, err, decodes.Load())
	}
	if least := before + decodedFactor*len(of.Value); o.cost < least {
		t.Errorf("it counts %d bytes, at least %d are taken", o.cost, least)
	}
	if kind := o.Shared().GetObjectKind().GroupVersionKind(); !kind.Empty() {
		t.Errorf("encoding left the kind %v in what all share", kind)
	}
}

// TestWhatCannotBeDecoded: an object that turns out to be broken returns an error, and is not kept.
func TestWhatCannotBeDecoded(t *testing.T) {
	space := New(1 << 20).Space()
	of := Stored{Key: "a", Value: []byte("value"), Revision: 1}
	broken := errors.New("broken")
	o := space.Defer(of, func(Stored) (apiruntime.Object, error) { return nil, broken }, upperCase{})
	if err := o.CacheEncode(eventForm+"name", eventOf("name"), io.Discard); !errors.Is(err, broken) {
		t.Errorf("encoded: %v", err)
	}
	if status, ok := o.GetObject().(*metav1.Status); !ok || !strings.Contains(status.Message, "broken") {
		t.Errorf("instead of the object: %+v", o.GetObject())
	}
	if o.GetObjectMeta() != nil {
		t.Error("it has metadata")
	}
	get(t, space, of)
	alone := Alone(of, decodeMap, upperCase{})
	if got := encoded(t, alone, "name", encodeName) + encoded(t, alone, "upper", encodeName); got != "aVALUE" {
		t.Errorf("an object in no cache: %q", got)
	}
}

// TestAnObjectThatGrowsTooLargeIsNotKept: an object larger than a generation after its decoding
// would push out all others.
func TestAnObjectThatGrowsTooLargeIsNotKept(t *testing.T) {
	const bound = 1 << 20
	space := New(bound).Space()
	of := Stored{Key: "a", Value: make([]byte, bound/shards/4), Revision: 1}
	o := space.Defer(of, decodeMap, upperCase{})
	if space.Defer(of, decodeMap, upperCase{}) != o {
		t.Fatal("it is not kept while it is not decoded")
	}
	if _, err := o.Decoded(); err != nil || space.Peek(of) != nil {
		t.Errorf("it is kept, %v", err)
	}
}

// TestWhoDecodedIsForgotten: a decoder may refer to a request, with all that this has read. That
// must not stay as long as the object, which does not count it.
func TestWhoDecodedIsForgotten(t *testing.T) {
	space := New(1 << 20).Space()
	var request weak.Pointer[[1 << 16]byte]
	read := func() *Object {
		body := new([1 << 16]byte)
		request = weak.Make(body)
		o, err := space.Get(Stored{Key: "a", Value: []byte("value"), Revision: 1},
			func(of Stored) (apiruntime.Object, error) {
				body[0]++
				return decodeMap(of)
			})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	o := read()
	runtime.GC()
	if request.Value() != nil {
		t.Error("the object keeps the request that wanted it first")
	}
	runtime.KeepAlive(o)
}

// TestOnlyLookupsAreCounted: a read of an object that the caller already has is no lookup.
func TestOnlyLookupsAreCounted(t *testing.T) {
	space := New(1 << 20).Space()
	count := func(result string) float64 {
		n, err := testutil.GetCounterMetricValue(lookups.WithLabelValues(result))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	hits, misses := count("hit"), count("miss")
	o := space.Defer(Stored{Key: "a", Value: []byte("value"), Revision: 1}, decodeMap, upperCase{})
	for range 3 {
		o.GetObjectMeta()
		o.GetObject()
	}
	encoded(t, o, "name", encodeName)
	if hits, misses := count("hit")-hits, count("miss")-misses; hits != 0 || misses != 1 {
		t.Errorf("%v hits and %v misses of one object that was decoded for one event", hits, misses)
	}
}
