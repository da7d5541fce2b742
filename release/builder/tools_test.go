package main

import (
	_ "github.com/in-toto/attestation/go/predicates/provenance/v1"
	_ "github.com/in-toto/attestation/go/v1"
	_ "github.com/xeipuuv/gojsonschema"
)
