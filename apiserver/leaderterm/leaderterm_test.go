package leaderterm

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestFromHeader(t *testing.T) {
	tests := []struct {
		name   string
		values []string
		code   int
		term   uint64
	}{
		{"absent", nil, 200, 0},
		{"a term", []string{"42"}, 200, 42},
		{"not a number", []string{"leader"}, 400, 0},
		{"negative", []string{"-1"}, 400, 0},
		// Zero would mean "not fenced": a leader that sends it is wrong.
		{"zero", []string{"0"}, 400, 0},
		{"two", []string{"1", "2"}, 400, 0},
		{"empty", []string{""}, 400, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var term uint64
			handler := FromHeader(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				term = Of(r.Context())
			}))
			request := httptest.NewRequest(http.MethodPost, "/", nil)
			for _, value := range tt.values {
				request.Header.Add(Header, value)
			}
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, request)
			if recorder.Code != tt.code || term != tt.term {
				t.Errorf("answered %d with term %d, want %d with %d", recorder.Code, term, tt.code, tt.term)
			}
		})
	}
}
