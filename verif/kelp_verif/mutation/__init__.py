# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Mutation: would a block's bench notice, if a line of the block were wrong? (docs/formal.md)"""
