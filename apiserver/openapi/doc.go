// Package openapi describes the API in OpenAPI v2 and v3, for kubectl explain and everything else
// that reads schemas.
//
// The definitions are built from the Go types themselves when somebody first asks: fields and
// their types by reflection, descriptions from SwaggerDoc, names from OpenAPIModelName, patch
// strategies from struct tags, and how lists merge from the schema that client-go carries for
// server-side apply. Nothing is generated, and a server that nobody asks builds nothing. The types of
// the protocol itself have the definitions of the libraries that serve them, too. Custom resources
// are described from their definitions, which are read anew for each request. Extension API
// servers are asked for their documents, once a minute at most.
//
// What reflection cannot see, enumerations and defaults of single fields, is left out.
package openapi
