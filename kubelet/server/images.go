package server

import (
	"net/http"

	"github.com/barque/barque/kubelet/images"
)

// importImages imports the images of a tar, the request's body, into the node's runtime.
func (s *Server) importImages(w http.ResponseWriter, r *http.Request) {
	if s.ImportImages == nil {
		http.Error(w,
			"node "+s.NodeName+
				" uses a container runtime that is not its own: import the images with that runtime's tools",
			http.StatusNotImplemented)
		return
	}
	names, err := s.ImportImages(r.Context(), r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	writeJSON(w, images.Imported{Images: names})
}
